// p-norm of attention: (Σ_t ā_t^p)^(1/p) of each token, p = 3, summed over the window (qevict.md section 3; the reading
// is qevict-examples.md A19). Peaks count for more than steady drizzle. It needs an
// accumulator for each token, which is counted.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "ranking/ranking.h"

namespace qevict {

inline constexpr int kPnormPower = 3;

// One row of attention: sums[i] += ā(i)^p. Both [tokens].
inline void pnorm_add(std::span<float> sums, std::span<const float> attention) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += std::pow(attention[i], static_cast<float>(kPnormPower));
}

// Score of the window whose tokens have these sums.
inline float pnorm_score(std::span<const float> sums) {
  float score = 0;
  for (const float sum : sums) score += std::pow(sum, 1 / static_cast<float>(kPnormPower));
  return score;
}

inline constexpr RankingRow kPnorm = {.name = "pnorm",
                                      .summary = "3-norm of the attention received, so that peaks count for more",
                                      .rule = {.power = kPnormPower}};

}  // namespace qevict
