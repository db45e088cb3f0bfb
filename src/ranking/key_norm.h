// Key norms: windows with long keys draw little attention and go first (arXiv 2406.11430). Scored once, from the
// original keys (qevict-examples.md A21); it becomes a row of kRankings when challengers are scored from their keys.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

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

}  // namespace qevict
