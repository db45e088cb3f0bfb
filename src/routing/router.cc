#include "routing/router.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "base/check.h"

namespace qevict {
namespace {

// Orders candidates: forced ones first, then higher scores, then smaller windows. One integer, since selecting among
// thousands is most of a routing's time.
std::uint64_t key_of(const Candidate& candidate) {
  const auto bits = std::bit_cast<std::uint32_t>(candidate.score == 0 ? 0.0f : candidate.score);
  std::uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (candidate.forced) ordered = ~std::uint32_t{1};  // above infinity, and no key is the largest number
  return std::uint64_t{ordered} << 32 | (~std::uint32_t{0} - static_cast<std::uint32_t>(candidate.window));
}

// The least of all but the `out` smallest keys.  REQUIRES: out < keys.size().
std::uint64_t least_without(std::span<std::uint64_t> keys, std::size_t out) {
  constexpr std::size_t kFew = 16;
  if (out >= kFew) {
    std::nth_element(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(out), keys.end());
    return keys[out];
  }
  std::uint64_t smallest[kFew + 1];  // the out + 1 smallest so far, ascending
  std::fill_n(smallest, out + 1, ~std::uint64_t{0});
  for (const std::uint64_t key : keys) {
    if (key >= smallest[out]) continue;
    std::size_t at = out;
    for (; at > 0 && smallest[at - 1] > key; --at) smallest[at] = smallest[at - 1];
    smallest[at] = key;
  }
  return smallest[out];
}

// The least key of the n largest. 0 where all are. guess: a key with little fewer than n, or little more, above it:
// what is in the tier now hardly differs from what ought to be.
std::uint64_t least_of_largest(std::vector<std::uint64_t>& keys, int n, std::uint64_t guess) {
  const auto count = static_cast<std::size_t>(std::max(n, 0));
  if (count >= keys.size()) return 0;
  if (count == 0) return ~std::uint64_t{0};  // no key is that large
  const auto above =
      static_cast<std::size_t>(std::ranges::count_if(keys, [&](std::uint64_t key) { return key >= guess; }));
  if (above < count) return least_without(keys, keys.size() - count);
  if (above < keys.size()) std::erase_if(keys, [&](std::uint64_t key) { return key < guess; });
  return least_without(keys, above - count);
}

}  // namespace

RoutingPlan route(std::int64_t event, std::span<const Candidate> candidates, const TierCapacity& capacity) {
  std::vector<std::uint64_t> keys(candidates.size());
  std::vector<std::uint64_t> selected;
  selected.reserve(candidates.size());
  std::uint64_t least_full = ~std::uint64_t{0}, least_quantized = ~std::uint64_t{0};  // in the tiers now
  const auto may_be_full = [&](const Candidate& candidate) {
    return capacity.promotion || candidate.tier != Tier::quantized;
  };
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    QEVICT_CHECK(candidates[i].tier != Tier::evicted, "an evicted window is no candidate");
    keys[i] = key_of(candidates[i]);
    if (candidates[i].tier == Tier::full) least_full = std::min(least_full, keys[i]);
    if (candidates[i].tier == Tier::quantized) least_quantized = std::min(least_quantized, keys[i]);
    if (may_be_full(candidates[i])) selected.push_back(keys[i]);
  }
  const std::uint64_t full_from = least_of_largest(selected, capacity.full, least_full);
  const auto is_full = [&](std::size_t i) { return may_be_full(candidates[i]) && keys[i] >= full_from; };
  selected.clear();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!is_full(i)) selected.push_back(keys[i]);
  }
  const std::uint64_t quantized_from = least_of_largest(selected, capacity.quantized, least_quantized);

  RoutingPlan plan{.event = event, .moves = {}};
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const bool full = is_full(i), quantized = !full && keys[i] >= quantized_from;
    plan.full_after += full;
    plan.quantized_after += quantized;
    const Tier to = full ? Tier::full : quantized ? Tier::quantized : Tier::evicted;
    if (to != candidates[i].tier)
      plan.moves.push_back({.window = candidates[i].window, .from = candidates[i].tier, .to = to});
  }
  std::ranges::sort(plan.moves, {}, &TierMove::window);
  return plan;
}

}  // namespace qevict
