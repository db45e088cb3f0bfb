#include "routing/router.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace qevict {

RoutingPlan route(std::int64_t event, std::span<const Candidate> candidates, const TierCapacity& capacity) {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.window < b.window;
  };
  // Moves the best n that may enter the tier to the front, and returns how many those are.
  const auto take = [&](std::span<Candidate> from, int n, auto&& may_enter) {
    const auto end = std::partition(from.begin(), from.end(), may_enter);
    const auto taken = std::min<std::ptrdiff_t>(n, end - from.begin());
    if (from.begin() + taken != end) std::nth_element(from.begin(), from.begin() + taken, end, better);
    return static_cast<std::size_t>(taken);
  };
  std::vector<Candidate> order(candidates.begin(), candidates.end());
  const std::size_t n_full = take(order, capacity.full, [&](const Candidate& candidate) {
    QEVICT_CHECK(candidate.tier != Tier::evicted, "an evicted window is no candidate");
    return capacity.promotion || candidate.tier != Tier::quantized;
  });
  const std::span<Candidate> rest = std::span(order).subspan(n_full);
  const std::size_t n_quantized = take(rest, capacity.quantized, [](const Candidate&) { return true; });

  RoutingPlan plan{.event = event,
                   .moves = {},
                   .full_after = static_cast<int>(n_full),
                   .quantized_after = static_cast<int>(n_quantized)};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Tier to = i < n_full ? Tier::full : i < n_full + n_quantized ? Tier::quantized : Tier::evicted;
    if (to != order[i].tier) plan.moves.push_back({.window = order[i].window, .from = order[i].tier, .to = to});
  }
  std::sort(plan.moves.begin(), plan.moves.end(),
            [](const TierMove& a, const TierMove& b) { return a.window < b.window; });
  return plan;
}

}  // namespace qevict
