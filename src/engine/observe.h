// What rankings that look at a head anew are shown (ranking/ranking.h): keys, and the attention of its last queries.
#pragma once

#include <span>

#include "cache/head_cache.h"
#include "ranking/ranking.h"

namespace qevict {

// candidates: all of the head's windows and challengers, ascending; tokens: as HeadCache::apply takes them. scale: of
// logits. What the ranking does not ask for stays empty.
Observation observe(const RankingRow& ranking, const HeadCache& head, const CacheShape& shape, const Zones& zones,
                    const TokenView& tokens, std::span<const Candidate> candidates, float scale);

}  // namespace qevict
