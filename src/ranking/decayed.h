// Decayed attention: S <- γ S + ā per token, γ = 0.99, so that a window's score follows what is attended to now.
#pragma once

#include "ranking/ranking.h"

namespace qevict {

inline constexpr RankingRow kDecayed = {
    .name = "decayed", .summary = "attention received, halving every 69 tokens (gamma 0.99)", .rule = {.decay = 0.99f}};

}  // namespace qevict
