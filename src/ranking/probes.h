// ZipCache's saliency (arXiv 2405.14256; baselines.md 6.3): in a prompt the attention of a tenth of its rows, divided
// by how many of these see a token; while decoding that of the newest token alone.
#pragma once

#include <cstdint>
#include <span>

#include "ranking/ranking.h"

namespace qevict {

inline constexpr std::uint64_t kProbeSeed = 1;

// Divides sums over the probes of a prompt by the probes that see each token; probe_weights: of its rows, 1 for probes.
// sums: [n], of the prompt's tokens.
inline void divide_by_probes(std::span<const float> probe_weights, std::span<float> sums) {
  float seeing = 0;
  for (std::size_t i = sums.size(); i-- > 0;) {
    seeing += probe_weights[i];
    if (seeing > 0) sums[i] /= seeing;
  }
}

inline constexpr RankingRow kProbes = {
    .name = "probes",
    .summary = "mean attention of a tenth of the prompt, then of the newest token (ZipCache)",
    .rule = {.decay = 0, .probes = true}};

}  // namespace qevict
