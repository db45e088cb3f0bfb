// The rivals' worked examples (baselines.md), from attention rows to the tokens that stay.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ranking/defensive.h"
#include "ranking/key_diff.h"
#include "ranking/ranking.h"
#include "ranking/snapkv.h"
#include "ranking/weights.h"
#include "routing/allocator.h"
#include "routing/router.h"
#include "routing/stages.h"

namespace qevict {
namespace {

// Fixture A of baselines.md: two KV heads of two query heads, rows of queries 6 and 7, the prefix of 6 keys.
constexpr int kPrefix = 6;
const std::vector<std::vector<float>> kHead0 = {{.30f, .02f, .03f, .20f, .05f, .10f},
                                                {.40f, .05f, .05f, .05f, .20f, .05f},
                                                {.25f, .01f, .04f, .30f, .05f, .05f},
                                                {.35f, .05f, .10f, .05f, .15f, .05f}};
const std::vector<std::vector<float>> kHead1 = {{.10f, .10f, .10f, .10f, .10f, .10f},
                                                {.60f, .02f, .02f, .02f, .02f, .02f},
                                                {.10f, .10f, .05f, .15f, .10f, .10f},
                                                {.50f, .02f, .02f, .02f, .02f, .12f}};
const std::vector<float> kNorms0 = {.5f, 3, 2, 1, 1, 1.5f};
const std::vector<float> kNorms1 = {.2f, 1, 1, 1, 2, 1};

Observation observed(const std::vector<std::vector<float>>& rows) {
  Observation result{.n = kPrefix, .key_dim = 0, .keys = {}, .rows = 2, .group = 2, .attention = {}};
  for (const auto& row : rows) result.attention.insert(result.attention.end(), row.begin(), row.end());
  return result;
}

std::vector<Candidate> candidates(const std::vector<float>& scores, const std::vector<float>& weights = {}) {
  std::vector<Candidate> result;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    result.push_back({.window = static_cast<std::int64_t>(i), .tier = Tier::none, .score = scores[i]});
    if (!weights.empty()) result.back().weight = weights[i];
  }
  return result;
}

using Ids = std::vector<std::int64_t>;
Ids kept(const std::vector<Candidate>& all, int slots) {
  const RoutingPlan plan = route(0, all, {.full = slots, .quantized = 0, .promotion = false});
  Ids ids;
  for (const TierMove& move : plan.moves) {
    if (move.to == Tier::full) ids.push_back(move.window);
  }
  return ids;
}

void expect_near(const std::vector<float>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-6) << i;
}

constexpr SpendingRule kTokens{.costs = {.full_slot_bytes = 1, .quantized_slot_bytes = 0}};

// Slots of each head when `total` are shared by bids, `floor` of each its own.
std::vector<int> shared(const std::vector<std::vector<Candidate>>& heads, std::size_t total, std::size_t floor) {
  std::vector<const std::vector<Candidate>*> pointers;
  for (const auto& head : heads) pointers.push_back(&head);
  std::vector<int> slots;
  for (const std::size_t bytes : allocate(pointers, kTokens, total, floor)) slots.push_back(static_cast<int>(bytes));
  return slots;
}

std::vector<float> snapkv(const std::vector<std::vector<float>>& rows) {
  return average_pool(mean_attention(observed(rows)), 3);
}

TEST(TSnap, AveragesThenPools) {
  expect_near(mean_attention(observed(kHead0)), {.325, .0325, .055, .15, .1125, .0625});
  expect_near(snapkv(kHead0), {.119167, .1375, .079167, .105833, .108333, .058333});
  expect_near(snapkv(kHead1), {.128333, .144167, .06, .06, .0725, .048333});
  EXPECT_EQ(kept(candidates(snapkv(kHead0)), 3), (Ids{0, 1, 4}));
  EXPECT_EQ(kept(candidates(snapkv(kHead1)), 3), (Ids{0, 1, 4}));
}
TEST(TSnap, TheLargestOfNeighboursAfterTheGroupsMean) {
  const std::vector<float> pooled = max_pool(mean_attention(observed(kHead0)), 3);
  expect_near(pooled, {.325, .325, .15, .15, .15, .1125});
  EXPECT_EQ(kept(candidates(pooled), 3), (Ids{0, 1, 2}));
}

TEST(TAda, KeepsTheExamplesTokens) {
  const std::vector<std::vector<Candidate>> heads = {candidates(snapkv(kHead0)), candidates(snapkv(kHead1))};
  const std::vector<int> slots = shared(heads, 6, 1);
  EXPECT_EQ(kept(heads[0], slots[0]), (Ids{0, 1, 3, 4}));
  EXPECT_EQ(kept(heads[1], slots[1]), (Ids{0, 1}));
}

TEST(TCrit, TwoStages) {
  std::vector<Candidate> head0 = candidates(snapkv(kHead0), kNorms0), head1 = candidates(snapkv(kHead1), kNorms1);
  two_stages(head0, 3, 500);
  two_stages(head1, 3, 500);
  EXPECT_TRUE(head0[1].forced && head1[1].forced);
  const double want0[] = {.059633, 0, .158533, .105933, .108433, .08765};
  const double want1[] = {.025687, 0, .0601, .0601, .1452, .048433};
  for (const std::size_t i : {0u, 2u, 3u, 4u, 5u}) {
    EXPECT_NEAR(static_cast<double>(head0[i].score), want0[i], 2e-6);
    EXPECT_NEAR(static_cast<double>(head1[i].score), want1[i], 2e-6);
  }
  EXPECT_EQ(kept(head0, 3), (Ids{1, 2, 4}));
  const Ids second = kept(head1, 3);
  EXPECT_TRUE(second == (Ids{1, 2, 4}) || second == (Ids{1, 3, 4}));  // tokens 2 and 3 tie in exact arithmetic
}
TEST(TCrit, TheAdaForm) {
  std::vector<Candidate> head0 = candidates(snapkv(kHead0), kNorms0), head1 = candidates(snapkv(kHead1), kNorms1);
  EXPECT_EQ(shared({head0, head1}, 6, 1), (std::vector<int>{4, 2}));
  two_stages(head0, 4, 500);
  two_stages(head1, 2, 500);
  EXPECT_EQ(kept(head0, 4), (Ids{0, 1, 2, 4}));
  EXPECT_EQ(kept(head1, 2), (Ids{1, 4}));
}

class TDef : public ::testing::Test {
 protected:
  TDef() : first_(observed(kHead0)), second_(observed(kHead1)) {
    share_over_heads(std::vector<std::span<float>>{norms0_, norms1_});
    for (int h = 0; h < 2; ++h) {
      std::vector<float> scores(kPrefix);
      defensive_scores(h == 0 ? first_ : second_, scores, 3);
      worst_.push_back(scores);
      const std::vector<float>& norms = h == 0 ? norms0_ : norms1_;
      for (std::size_t i = 0; i < scores.size(); ++i) scores[i] *= norms[i];
      heads_.push_back(candidates(scores));
    }
  }
  std::vector<Ids> kept_with(std::vector<std::vector<Candidate>> heads, const Beta* beta) {
    const std::vector<const Observation*> layer = {&first_, &second_};
    for (std::size_t h = 0; beta != nullptr && h < 2; ++h) {
      const std::vector<char> forced = defensive_forced(layer, 3, *beta)[h];
      for (std::size_t i = 0; i < forced.size(); ++i) heads[h][i].forced = forced[i] != 0;
    }
    const std::vector<int> slots = shared(heads, 6, 0);
    return {kept(heads[0], slots[0]), kept(heads[1], slots[1])};
  }

  Observation first_, second_;
  std::vector<float> norms0_ = kNorms0, norms1_ = kNorms1;
  std::vector<std::vector<float>> worst_;
  std::vector<std::vector<Candidate>> heads_;
};

TEST_F(TDef, Scores) {
  expect_near(worst_[0], {.184615, .205128, .15594, .15594, .15594, .15594});
  expect_near(worst_[1], {.293243, .302703, .171199, .171199, .171199, .171199});
  expect_near(norms0_, {.714286, .75, .666667, .5, .333333, .6});
  const double want0[] = {.131868, .153846, .10396, .07797, .05198, .093564};
  const double want1[] = {.083784, .075676, .057066, .0856, .114133, .06848};
  for (std::size_t i = 0; i < kPrefix; ++i) {
    EXPECT_NEAR(static_cast<double>(heads_[0][i].score), want0[i], 2e-6);
    EXPECT_NEAR(static_cast<double>(heads_[1][i].score), want1[i], 2e-6);
  }
}
TEST_F(TDef, ForcedAsReleased) {
  const std::vector<const Observation*> layer = {&first_, &second_};
  EXPECT_EQ(defensive_forced(layer, 3, Beta::code),
            (std::vector<std::vector<char>>{{1, 0, 0, 1, 0, 0}, {1, 0, 0, 0, 0, 1}}));
  const Beta beta = Beta::code;
  EXPECT_EQ(kept_with(heads_, &beta), (std::vector<Ids>{{0, 1, 3}, {0, 4, 5}}));
}
TEST_F(TDef, ForcedAsMeant) {
  const Beta beta = Beta::window;
  EXPECT_EQ(kept_with(heads_, &beta), (std::vector<Ids>{{0, 1, 2, 5}, {0, 4}}));
}
TEST_F(TDef, NothingForced) { EXPECT_EQ(kept_with(heads_, nullptr), (std::vector<Ids>{{0, 1, 2, 5}, {3, 4}})); }

// Two layers of one head, the newest token protected in both: 6 in all leaves 4 that compete, 4 in all leaves 2.
TEST(TLDef, AllLayersCompeteAndKeepTheirWindow) {
  const std::vector<std::vector<Candidate>> layers = {candidates({.50f, .20f, .10f, .05f}),
                                                      candidates({.09f, .08f, .04f, .01f})};
  std::vector<int> slots = shared(layers, 4, 0);
  EXPECT_EQ(kept(layers[0], slots[0]), (Ids{0, 1, 2}));
  EXPECT_EQ(kept(layers[1], slots[1]), (Ids{0}));
  slots = shared(layers, 2, 0);
  EXPECT_EQ(kept(layers[0], slots[0]), (Ids{0, 1}));
  EXPECT_EQ(kept(layers[1], slots[1]), Ids{});
}

// Rows t = 7 of the fixture, all eight keys.
TEST(TTova, OneSetOfTheNewestRow) {
  std::vector<Candidate> head0 = candidates({.30f, .03f, .07f, .175f, .10f, .05f, .125f, .15f});
  std::vector<Candidate> head1 = candidates({.30f, .06f, .035f, .085f, .06f, .11f, .20f, .15f});
  share_scores(std::vector<std::vector<Candidate>*>{&head0, &head1});
  const double want[] = {.3, .045, .0525, .13, .08, .08, .1625, .15};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(static_cast<double>(head0[i].score), want[i], 1e-6);
  EXPECT_EQ(kept(head0, 4), (Ids{0, 3, 6, 7}));
  EXPECT_EQ(kept(head1, 4), (Ids{0, 3, 6, 7}));
  const ScoreRule rule = find_ranking("newest")->rule;
  EXPECT_EQ(rule.row_weight(7, 8), 1) << "the newest row";
  EXPECT_EQ(rule.row_weight(6, 8), 0);
}

// One head, five rows; Hh = 1, R = 2, so that tokens 0 to 2 compete.
TEST(TH2o, SumAndMean) {
  const std::vector<std::vector<float>> rows = {
      {1}, {.3f, .7f}, {.2f, .5f, .3f}, {.2f, .2f, .5f, .1f}, {.1f, .1f, .6f, .1f, .1f}};
  std::vector<float> sums(5);
  for (std::size_t t = 0; t < rows.size(); ++t) {
    for (std::size_t i = 0; i < rows[t].size(); ++i)
      sums[i] += find_ranking("cumulative")->rule.row_weight(static_cast<int>(t), 5) * rows[t][i];
  }
  expect_near(sums, {1.8, 1.5, 1.4, .2, .1});
  std::vector<Candidate> by_mean = candidates(sums);
  find_ranking("mean")->score(by_mean, {.zones = {.sinks = 0, .window = 1, .recent = 2}, .n_tokens = 5});
  const double want[] = {.36, .375, .466667, .1, .1};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(static_cast<double>(by_mean[i].score), want[i], 1e-6);
  std::vector<Candidate> by_sum = candidates(sums);
  by_sum.resize(3);
  by_mean.resize(3);
  EXPECT_EQ(kept(by_sum, 1), Ids{0});
  EXPECT_EQ(kept(by_mean, 1), Ids{2});
  // Two more steps of the sum: token 3, then token 4 has left the newest two.
  std::vector<Candidate> step = {{.window = 0, .tier = Tier::full, .score = 1.8f + .1f},
                                 {.window = 3, .tier = Tier::none, .score = .2f + .2f}};
  const RoutingPlan plan = route(1, step, {.full = 1, .quantized = 0, .promotion = false});
  EXPECT_EQ(plan.moves, (std::vector<TierMove>{{3, Tier::none, Tier::evicted}}));
  step = {{.window = 0, .tier = Tier::full, .score = 1.9f + .05f},
          {.window = 4, .tier = Tier::none, .score = .4f + .6f}};
  EXPECT_EQ(route(2, step, {.full = 1, .quantized = 0, .promotion = false}).moves,
            (std::vector<TierMove>{{4, Tier::none, Tier::evicted}}))
      << "token 4 had just received .6 and is gone";
}

TEST(TKd, UnusualKeysStay) {
  Observation head{
      .n = 4, .key_dim = 2, .keys = {1, 0, .8f, .6f, 0, 1, 1, .1f}, .rows = 0, .group = 1, .attention = {}};
  std::vector<float> scores(4);
  key_diff_scores(head, scores);
  expect_near(scores, {-.854446, -.995281, -.51954, -.901902});
  EXPECT_EQ(kept(candidates(scores), 2), (Ids{0, 2}));
}

}  // namespace
}  // namespace qevict
