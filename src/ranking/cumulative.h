// Cumulative attention: S(i) = sum over all queries so far of their mean probability on key i. The paper's ranking
// (4.2).
#pragma once

#include "ranking/ranking.h"

namespace qevict {

inline constexpr RankingRow kCumulative = {
    .name = "cumulative", .summary = "attention received since the start (the paper's)", .rule = {}};

}  // namespace qevict
