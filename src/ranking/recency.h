// Recency: younger windows stay. With one-token windows and f16 only this is StreamingLLM (arXiv 2309.17453).
#pragma once

#include "ranking/ranking.h"

namespace qevict {

inline void score_by_age(std::span<Candidate> candidates, const RankingContext&) {
  for (Candidate& candidate : candidates) candidate.score = static_cast<float>(candidate.window);
}

inline constexpr RankingRow kRecency = {
    .name = "recency", .summary = "the newest stay; keeps no scores", .rule = {.kept = false}, .score = &score_by_age};

}  // namespace qevict
