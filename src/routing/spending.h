// How a head spends its history bytes: on coverage (many windows as codes) or on precision (fewer, some of them f16).
#pragma once

#include <cstddef>
#include <span>

#include "cache/routing_plan.h"
#include "routing/router.h"

namespace qevict {

struct SlotCosts {
  std::size_t history_bytes = 0;         // to spend
  std::size_t full_slot_bytes = 0;       // of one window, metadata included
  std::size_t quantized_slot_bytes = 0;  // likewise
};

// The split with the largest gain, where a window of score m is worth m at full precision, (1 - loss) m as codes and
// nothing when evicted. Windows that were quantized once stay codes (their codes are what is left of them), so only
// others can be bought at full precision. Everything that can be held as codes is held before more precision is bought
// only if that is worth more: with scores that fall fast precision wins, with flat ones coverage does. Pure.
TierCapacity spend_by_gain(std::span<const Candidate> candidates, const SlotCosts& costs, double loss);

}  // namespace qevict
