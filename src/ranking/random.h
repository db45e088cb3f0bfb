// Random scores, fixed for a token's life: the floor that every ranking must beat (baselines.md section 10).
#pragma once

#include "base/rng.h"
#include "ranking/ranking.h"

namespace qevict {

inline void random_token_scores(const TokenBatch& tokens, std::span<float> scores) {
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto position = static_cast<std::uint64_t>(tokens.first_position) + i;
    const auto head = static_cast<std::uint64_t>(tokens.layer) << 16 | static_cast<std::uint64_t>(tokens.kv_head);
    scores[i] = static_cast<float>(Rng(head << 32 ^ position).uniform());
  }
}

inline constexpr RankingRow kRandom = {.name = "random",
                                       .summary = "a fixed draw: what any ranking must beat",
                                       .rule = {.attention = false},
                                       .token_scores = &random_token_scores};

}  // namespace qevict
