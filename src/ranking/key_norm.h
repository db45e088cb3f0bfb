// Key norms: windows with long keys draw little attention and go first (arXiv 2406.11430). Scored once, from the
// original keys (qevict-examples.md A21).
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "ranking/ranking.h"

namespace qevict {

// keys: [tokens][key_dim], before or after RoPE (it turns, and scales all keys alike). Higher stays longer.
inline float key_norm_score(std::span<const float> keys, std::size_t key_dim) {
  float sum = 0;
  for (std::size_t at = 0; at < keys.size(); at += key_dim) {
    float square = 0;
    for (const float k : keys.subspan(at, key_dim)) square += k * k;
    sum += std::sqrt(square);
  }
  return -sum * static_cast<float>(key_dim) / static_cast<float>(keys.size());
}

inline void key_norm_of_tokens(const TokenBatch& tokens, std::span<float> scores) {
  const auto dim = static_cast<std::size_t>(tokens.key_dim);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    float square = 0;
    for (const Half k : tokens.keys.subspan(i * dim, dim)) square += to_float(k) * to_float(k);
    scores[i] = -std::sqrt(square);
  }
}

inline constexpr RankingRow kKeyNorm = {.name = "key-norm",
                                        .summary = "short keys stay (Knorm); follows no attention",
                                        .rule = {.attention = false},
                                        .token_scores = &key_norm_of_tokens};

}  // namespace qevict
