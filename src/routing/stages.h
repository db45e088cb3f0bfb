// CriticalKV's two stages (arXiv 2502.03805; baselines.md 4.5): the best share of a head's windows by score is safe,
// the rest competes by score times weight. Without the first stage what draws much attention and says little, a sink,
// is lost.
#pragma once

#include <span>

#include "cache/routing_plan.h"

namespace qevict {

inline constexpr float kStageEpsilon = 1e-4f;

// Forces the floor(first_stage_per_mille / 1000 * slots) best candidates and turns the scores of all others into
// (score + epsilon) * weight. slots: windows that the head may keep.
void two_stages(std::span<Candidate> candidates, int slots, int first_stage_per_mille);

}  // namespace qevict
