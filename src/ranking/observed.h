// Observed attention: the seed is the last 32 prompt rows only (SnapKV's observation window), then as `decayed`.
#pragma once

#include "ranking/ranking.h"

namespace qevict {

inline constexpr RankingRow kObserved = {.name = "observed",
                                         .summary = "attention of the last 32 prompt tokens, then decayed (gamma 0.99)",
                                         .rule = {.decay = 0.99f, .observed_rows = 32}};

}  // namespace qevict
