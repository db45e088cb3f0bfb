// A RoutingPlan says which windows of one KV head change tier at one routing event.
//
// The router makes it, HeadCache::apply consumes it, diag logs it: the same value, so an event can be replayed from its
// trace line. Holds no pointers into the cache; safe to copy and compare.
#pragma once

#include <cstdint>
#include <vector>

namespace qevict {

enum class Tier : std::uint8_t {
  none,  // not routed yet: still in, or just leaving, the recent region (a challenger)
  full,
  quantized,
  evicted,  // for good
};

struct TierMove {
  std::int64_t window = 0;  // id
  Tier from = Tier::none;
  Tier to = Tier::none;
  friend bool operator==(const TierMove&, const TierMove&) = default;
};

// A window that may be ranked: in a tier now, or a challenger (Tier::none).
struct Candidate {
  std::int64_t window = 0;
  Tier tier = Tier::none;
  float score = 0;      // higher stays longer
  float weight = 1;     // factor frozen when the window was first routed (LayoutRule::weights)
  bool forced = false;  // comes before all that are not
};

struct RoutingPlan {
  std::int64_t event = 0;       // 0 is the end of the first prefill
  std::vector<TierMove> moves;  // ascending window id, at most one per window; every challenger has one
  int full_after = 0;           // windows
  int quantized_after = 0;
  friend bool operator==(const RoutingPlan&, const RoutingPlan&) = default;
};

}  // namespace qevict
