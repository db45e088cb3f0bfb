#include "routing/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace qevict {
namespace {

using Scores = std::map<std::int64_t, float>;

// Applies events to a map of tiers, as the cache would.
class Trace {
 public:
  explicit Trace(bool promotion) : capacity_{.full = 2, .quantized = 3, .promotion = promotion} {}

  RoutingPlan event(const Scores& scores) {
    std::vector<Candidate> candidates;
    for (const auto& [window, score] : scores) {
      candidates.push_back({window, tiers_.count(window) ? tiers_[window] : Tier::none, score});
    }
    const RoutingPlan plan = route(event_++, candidates, capacity_);
    std::reverse(candidates.begin(), candidates.end());
    EXPECT_EQ(route(plan.event, candidates, capacity_), plan) << "the order of candidates must not matter";
    for (const TierMove& move : plan.moves) {
      ++migrations_[{move.from, move.to}];
      tiers_[move.window] = move.to;
    }
    return plan;
  }
  std::vector<std::int64_t> in(Tier tier) const {
    std::vector<std::int64_t> result;
    for (const auto& [window, t] : tiers_) {
      if (t == tier) result.push_back(window);
    }
    return result;
  }
  int migrations(Tier from, Tier to) { return migrations_[{from, to}]; }
  void clear_migrations() { migrations_.clear(); }

 private:
  TierCapacity capacity_;
  std::int64_t event_ = 0;
  std::map<std::int64_t, Tier> tiers_;
  std::map<std::pair<Tier, Tier>, int> migrations_;
};

using Ids = std::vector<std::int64_t>;
const Scores kEvent0 = {{0, 5}, {1, 1}, {2, 3}, {3, 2}, {4, 4}};
const Scores kEvent1 = {{0, 5.2f}, {1, 1.1f}, {2, 6}, {3, 2.5f}, {4, 4.1f}, {5, 3}};

TEST(QRoute1, PromotionOn) {
  Trace trace(true);
  trace.event(kEvent0);
  EXPECT_EQ(trace.in(Tier::full), (Ids{0, 4}));
  EXPECT_EQ(trace.in(Tier::quantized), (Ids{1, 2, 3}));
  trace.clear_migrations();

  const RoutingPlan plan = trace.event(kEvent1);
  EXPECT_EQ(plan.moves, (std::vector<TierMove>{{1, Tier::quantized, Tier::evicted},
                                               {2, Tier::quantized, Tier::full},
                                               {4, Tier::full, Tier::quantized},
                                               {5, Tier::none, Tier::quantized}}));
  EXPECT_EQ(trace.in(Tier::full), (Ids{0, 2}));
  EXPECT_EQ(trace.in(Tier::quantized), (Ids{3, 4, 5}));

  // Two ties: windows 0 and 2 for the last full slot, 3 and 6 for the last quantized one. The smaller id wins.
  trace.event({{0, 4}, {2, 4}, {3, 1.5f}, {4, 6}, {5, 2.2f}, {6, 1.5f}});
  EXPECT_EQ(trace.in(Tier::full), (Ids{0, 4}));
  EXPECT_EQ(trace.in(Tier::quantized), (Ids{2, 3, 5}));
  EXPECT_EQ(trace.in(Tier::evicted), (Ids{1, 6}));

  trace.event({{0, 1}, {2, 2}, {3, 4.7f}, {4, 5}, {5, 1.9f}, {7, 4.4f}});
  EXPECT_EQ(trace.in(Tier::full), (Ids{3, 4}));
  EXPECT_EQ(trace.in(Tier::quantized), (Ids{2, 5, 7}));
  EXPECT_EQ(trace.in(Tier::evicted), (Ids{0, 1, 6}));

  EXPECT_EQ(trace.migrations(Tier::full, Tier::quantized), 2);
  EXPECT_EQ(trace.migrations(Tier::quantized, Tier::full), 3);
  EXPECT_EQ(trace.migrations(Tier::quantized, Tier::evicted), 1);
  EXPECT_EQ(trace.migrations(Tier::full, Tier::evicted), 1);
  EXPECT_EQ(trace.migrations(Tier::none, Tier::full), 0);
  EXPECT_EQ(trace.migrations(Tier::none, Tier::quantized), 2);
  EXPECT_EQ(trace.migrations(Tier::none, Tier::evicted), 1);
}

TEST(QRoute2, PromotionOff) {
  Trace trace(false);
  trace.event(kEvent0);
  trace.clear_migrations();
  trace.event(kEvent1);
  EXPECT_EQ(trace.in(Tier::full), (Ids{0, 4}));
  EXPECT_EQ(trace.in(Tier::quantized), (Ids{2, 3, 5}));
  EXPECT_EQ(trace.in(Tier::evicted), (Ids{1}));
  trace.event({{0, 4}, {2, 4}, {3, 1.5f}, {4, 6}, {5, 2.2f}, {6, 1.5f}});
  EXPECT_EQ(trace.in(Tier::full), (Ids{0, 4}));
  EXPECT_EQ(trace.in(Tier::quantized), (Ids{2, 3, 5}));
  trace.event({{0, 1}, {2, 2}, {3, 4.7f}, {4, 5}, {5, 1.9f}, {7, 4.4f}});
  EXPECT_EQ(trace.in(Tier::full), (Ids{4, 7}));
  EXPECT_EQ(trace.in(Tier::quantized), (Ids{2, 3, 5}));
  EXPECT_EQ(trace.in(Tier::evicted), (Ids{0, 1, 6}));

  EXPECT_EQ(trace.migrations(Tier::full, Tier::quantized), 0);
  EXPECT_EQ(trace.migrations(Tier::quantized, Tier::full), 0);
  EXPECT_EQ(trace.migrations(Tier::quantized, Tier::evicted), 1);
  EXPECT_EQ(trace.migrations(Tier::full, Tier::evicted), 1);
  EXPECT_EQ(trace.migrations(Tier::none, Tier::full), 1);
  EXPECT_EQ(trace.migrations(Tier::none, Tier::quantized), 1);
  EXPECT_EQ(trace.migrations(Tier::none, Tier::evicted), 1);
}

}  // namespace
}  // namespace qevict
