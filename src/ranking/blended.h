// Between `decayed` and `observed`: all prompt rows count with their decay, the last 32 of them three times as much.
// What the end of a prompt asks for and what the prompt went by until then both stay (docs/design.md).
#pragma once

#include "ranking/ranking.h"

namespace qevict {

inline constexpr RankingRow kBlended = {
    .name = "blended",
    .summary = "attention received, gamma 0.99, the last 32 prompt tokens' three times",
    .rule = {.decay = 0.99f, .observed_rows = 32, .unobserved = 1.0f / 3}};

}  // namespace qevict
