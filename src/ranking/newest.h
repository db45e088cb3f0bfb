// The newest token's attention (TOVA, arXiv 2401.06104; baselines.md section 5). TOVA's mean over all heads of a layer
// is the allocator `one-set`.
#pragma once

#include "ranking/ranking.h"

namespace qevict {

inline constexpr RankingRow kNewest = {
    .name = "newest", .summary = "attention of the newest token alone", .rule = {.decay = 0}};

}  // namespace qevict
