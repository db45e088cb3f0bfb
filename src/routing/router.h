// The router: candidates and capacities in, a RoutingPlan out. Pure: same input, same plan, in any order of candidates.
#pragma once

#include <cstdint>
#include <span>

#include "cache/routing_plan.h"

namespace qevict {

struct TierCapacity {
  int full = 0;           // windows
  int quantized = 0;      // windows
  bool promotion = true;  // false: quantized windows never return to full precision (ablation, paper K)
};

// qevict.md section 4: rank all candidates by score (ties: smaller window id first); the best `full` go to the full
// tier, the next `quantized` to the quantized tier, the rest are evicted. Without promotion the full tier is filled
// from windows that are full or challengers only, then the quantized tier from everything left. Scores must not be NaN.
RoutingPlan route(std::int64_t event, std::span<const Candidate> candidates, const TierCapacity& capacity);

}  // namespace qevict
