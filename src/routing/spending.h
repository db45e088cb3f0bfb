// How a head spends its history bytes: on coverage (many windows as codes) or on precision (fewer, some of them f16).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cache/routing_plan.h"
#include "routing/router.h"

namespace qevict {

struct SlotCosts {
  std::size_t full_slot_bytes = 0;       // of one window, metadata included
  std::size_t quantized_slot_bytes = 0;  // likewise; 0 if there is no quantized tier
};

// A window of score m is worth m at full precision, (1 - loss) m as codes and nothing when evicted; any window held is
// worth `coverage` times the mean score on top.
struct SpendingRule {
  SlotCosts costs;
  bool by_gain = false;         // split by marginal gain; else quantized_per_mille of the bytes go to codes
  int quantized_per_mille = 0;  // of the bytes, to the quantized tier
  double loss = 0;              // by_gain only
  // by_gain only: what matters drifts, so that any window held at all is worth this share of the mean score more.
  double coverage = 0;
};

// What history_bytes buy one head.
// Fixed share: ⌊⌊q H⌋ / slot⌋ and ⌊(H − ⌊q H⌋) / slot⌋ windows (qevict.md section 2).
// By gain: the split with the largest gain. Windows that were quantized once stay codes (their codes are what is left
// of them), so only others can be bought at full precision. With scores that fall fast precision wins, with flat ones
// coverage does. Pure.
TierCapacity spend(std::span<const Candidate> candidates, const SpendingRule& rule, std::size_t history_bytes);

// Something bytes can buy: a window as codes, its precision on top of that, or a window at the rule's mean price.
struct Purchase {
  double gain_per_byte = 0;
  std::size_t bytes = 0;
};

// All that one head may buy, in the order of its candidates.
std::vector<Purchase> buys(std::span<const Candidate> candidates, const SpendingRule& rule);

}  // namespace qevict
