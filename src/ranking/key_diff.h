// KeyDiff (arXiv 2504.15364): keys unlike the mean direction of all keys stay; no attention at all (baselines.md
// section 5).
#pragma once

#include <cmath>

#include "ranking/ranking.h"

namespace qevict {

// scores: [n], minus the cosine of each key with the mean of the normalised keys of all tokens held.
inline void key_diff_scores(const Observation& head, std::span<float> scores) {
  const auto dim = static_cast<std::size_t>(head.key_dim);
  const auto key = [&](std::size_t i) { return std::span<const float>(head.keys).subspan(i * dim, dim); };
  const auto norm = [](std::span<const float> x) {
    double square = 0;
    for (const float v : x) square += static_cast<double>(v) * static_cast<double>(v);
    return static_cast<float>(std::sqrt(square));
  };
  std::vector<float> anchor(dim);
  for (std::size_t i = 0; i < head.keys.size() / dim; ++i) {
    const float length = norm(key(i));
    for (std::size_t d = 0; d < dim && length > 0; ++d) anchor[d] += key(i)[d] / length;
  }
  const float anchor_length = norm(anchor);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const float lengths = norm(key(i)) * anchor_length;
    double dot = 0;
    for (std::size_t d = 0; d < dim; ++d) dot += static_cast<double>(key(i)[d]) * static_cast<double>(anchor[d]);
    scores[i] = lengths > 0 ? -static_cast<float>(dot) / lengths : 0.0f;
  }
}

inline constexpr RankingRow kKeyDiff = {.name = "keydiff",
                                        .summary = "keys unlike the mean of all keys stay; follows no attention",
                                        .rule = {.kept = false},
                                        .observe = &key_diff_scores,
                                        .keys = true};

}  // namespace qevict
