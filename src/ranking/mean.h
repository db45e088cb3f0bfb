// Mean attention: what a window received, divided by the queries that could see it, so that age is no merit (kvpress'
// ObservedAttention; baselines.md 4.2).
#pragma once

#include "ranking/ranking.h"

namespace qevict {

inline void score_by_mean(std::span<Candidate> candidates, const RankingContext& context) {
  for (Candidate& candidate : candidates) {
    const int first = context.zones.first_position(static_cast<int>(candidate.window));
    candidate.score /= static_cast<float>(context.n_tokens - first);
  }
}

inline constexpr RankingRow kMean = {.name = "mean",
                                     .summary = "attention received, per token that could see the window",
                                     .rule = {},
                                     .score = &score_by_mean};

}  // namespace qevict
