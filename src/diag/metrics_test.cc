#include "diag/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/check.h"

namespace qevict {
namespace {

using testing::ElementsAre;
using testing::Optional;

std::vector<Tier> tiers_of(std::string_view letters) {
  std::vector<Tier> tiers;
  for (const char c : letters)
    tiers.push_back(c == 'F' ? Tier::full : c == 'Q' ? Tier::quantized : c == 'E' ? Tier::evicted : Tier::none);
  return tiers;
}

// The trace of the example: tiers of windows 0..5 after each of 8 events.
std::vector<std::vector<Tier>> trace() {
  const std::string_view windows[] = {"FFQQFFFQ", "FQQQQQFQ", "QFFFQQQF", "QQEEEEEE", "QQQQFFQF", "--FFQQQQ"};
  std::vector<std::vector<Tier>> events;
  for (std::size_t e = 0; e < 8; ++e) {
    std::string letters;
    for (const std::string_view window : windows) letters += window[e];
    events.push_back(tiers_of(letters));
  }
  return events;
}

testing::Matcher<std::optional<double>> about(double value) { return Optional(testing::DoubleNear(value, 1e-6)); }

TEST(QDiagT, Churn) {
  const auto events = trace();
  const double expected[] = {2.0 / 3, 2.0 / 3, 0, 1, 0, 2.0 / 3, 1};
  PlainMean mean;
  for (std::size_t e = 1; e < events.size(); ++e) {
    const auto churn = selection_churn(events[e - 1], events[e]);
    EXPECT_THAT(churn, about(expected[e - 1])) << e + 1;
    mean.add(churn);
  }
  EXPECT_THAT(mean.value(), about(0.571429));
}

TEST(QDiagT, ChurnOfTwoEmptySetsIsNotCounted) {
  EXPECT_EQ(selection_churn(tiers_of("QE"), tiers_of("EEQ")), std::nullopt);
  EXPECT_THAT(selection_churn(tiers_of("QQ"), tiers_of("FQ")), about(1));
  EXPECT_THAT(selection_churn(tiers_of("F"), tiers_of("FF")), about(0.5));
  PlainMean mean;
  mean.add(std::nullopt);
  EXPECT_EQ(mean.value(), std::nullopt);
}

TEST(QDiagT, Migrations) {
  const auto events = trace();
  Migrations counts;
  for (std::size_t e = 1; e < events.size(); ++e) counts.add(events[e - 1], events[e]);
  const Migrations expected{.challenger_full = 1, .full_quantized = 7, .quantized_full = 6, .quantized_evicted = 1};
  EXPECT_EQ(counts, expected);

  Migrations at_prefill_end;
  at_prefill_end.add({}, events[0]);
  EXPECT_EQ(at_prefill_end, (Migrations{.challenger_full = 2, .challenger_quantized = 3}));
  counts.add(at_prefill_end);
  EXPECT_EQ(counts.challenger_full, 3);
  EXPECT_EQ(counts.challenger_quantized, 3);
}

TEST(QDiagT, MigrationsCountEveryKindAndRefuseReturnsFromTheDead) {
  Migrations counts;
  counts.add(Tier::none, Tier::evicted);
  counts.add(Tier::full, Tier::evicted);
  counts.add(Tier::full, Tier::full);
  counts.add(Tier::evicted, Tier::evicted);
  EXPECT_EQ(counts, (Migrations{.challenger_evicted = 1, .full_evicted = 1}));
  EXPECT_THROW(counts.add(Tier::evicted, Tier::quantized), BugError);
  EXPECT_THROW(counts.add(Tier::full, Tier::none), BugError);
}

Episodes episodes_of(const std::vector<std::vector<Tier>>& events) {
  EpisodeTracker tracker;
  for (const auto& tiers : events) tracker.observe(policy_activity(tiers));
  return tracker.episodes();
}

TEST(QDiagT, LirOfThePolicy) {
  const Episodes episodes = episodes_of(trace());
  EXPECT_THAT(episodes.returned, ElementsAre(0, 2, 1, 1, 1, 1));       // lengths 1 1 2 3 4 5
  EXPECT_THAT(episodes.open, ElementsAre(0, 2, 0, 0, 1, 0, 0, 0, 1));  // 1 1 4 8
  struct Row {
    int threshold;
    double eligible, re_entered, lir;
  };
  for (const Row& row : {Row{1, 10, 6, 0.6}, {2, 6, 4, 0.666667}, {3, 5, 3, 0.6}, {4, 4, 2, 0.5}, {8, 1, 0, 0}}) {
    const PooledRatio lir = episodes.lir(row.threshold);
    EXPECT_EQ(lir.denominator, row.eligible) << row.threshold;
    EXPECT_EQ(lir.numerator, row.re_entered) << row.threshold;
    EXPECT_THAT(lir.value(), about(row.lir)) << row.threshold;
  }
  EXPECT_EQ(episodes.lir(9).value(), std::nullopt);
}

TEST(QDiagT, ReturnTime) {
  const Episodes episodes = episodes_of(trace());
  EXPECT_THAT(episodes.median_return(), about(2.5));
  EXPECT_THAT(episodes.median_return(2), about(3.5));
  EXPECT_THAT(episodes.median_return(3), about(4));
  EXPECT_EQ(episodes.median_return(6), std::nullopt);
  EXPECT_EQ(Episodes{}.median_return(), std::nullopt);
}

TEST(QDiagT, EpisodesOfHeadsAddUp) {
  Episodes both = episodes_of(trace());
  both.add(both);
  EXPECT_THAT(both.lir(3).value(), about(0.6));
  EXPECT_EQ(both.lir(3).denominator, 10);
  EXPECT_THAT(both.median_return(), about(2.5));
  both.add(episodes_of(
      {tiers_of("Q"), tiers_of("Q"), tiers_of("Q"), tiers_of("Q"), tiers_of("Q"), tiers_of("Q"), tiers_of("F")}));
  EXPECT_THAT(both.median_return(), about(3));  // 1 1 1 1 2 2 [3] 3 4 4 5 5 6
}

TEST(QDiagT, TransitionsAtLags1And2) {
  TransitionTracker tracker({1, 2, 16});
  for (const auto& tiers : trace()) tracker.observe(policy_activity(tiers));
  const Transitions& one = tracker.transitions(0);
  EXPECT_EQ(one.to_active.numerator, 6);
  EXPECT_EQ(one.to_active.denominator, 26);
  EXPECT_THAT(one.to_active.value(), about(0.230769));
  EXPECT_EQ(one.to_inactive.numerator, 7);
  EXPECT_EQ(one.to_inactive.denominator, 14);
  EXPECT_THAT(one.departures_per_return().value(), about(1.166667));
  const Transitions& two = tracker.transitions(1);
  EXPECT_EQ(two.to_active.numerator, 7);
  EXPECT_EQ(two.to_active.denominator, 22);
  EXPECT_THAT(two.to_active.value(), about(0.318182));
  EXPECT_EQ(two.to_inactive.numerator, 9);
  EXPECT_EQ(two.to_inactive.denominator, 12);
  EXPECT_THAT(two.departures_per_return().value(), about(1.285714));
  EXPECT_EQ(tracker.transitions(2).to_active.value(), std::nullopt);  // no event has another 16 later
}

TEST(QDiagT, TransitionsAtAnyLagAreTheDefinitionsPairs) {
  const auto events = trace();
  const std::vector<int> lags = {1, 2, 3, 4, 5, 6, 7};
  TransitionTracker tracker(lags);
  for (const auto& tiers : events) tracker.observe(policy_activity(tiers));
  for (std::size_t i = 0; i < lags.size(); ++i) {
    int inactive = 0, returns = 0, active = 0, departures = 0;
    for (std::size_t e = 0; e + lags[i] < events.size(); ++e)
      for (std::size_t w = 0; w < 6; ++w) {
        if (events[e][w] == Tier::none) continue;
        const bool was = events[e][w] == Tier::full, is = events[e + lags[i]][w] == Tier::full;
        was ? ++active : ++inactive;
        returns += !was && is;
        departures += was && !is;
      }
    EXPECT_EQ(tracker.transitions(i).to_active.numerator, returns);
    EXPECT_EQ(tracker.transitions(i).to_active.denominator, inactive);
    EXPECT_EQ(tracker.transitions(i).to_inactive.numerator, departures);
    EXPECT_EQ(tracker.transitions(i).to_inactive.denominator, active);
  }
}

TEST(OracleActivity, TakesTheReferencesBestAsManyAsTheFullOnes) {
  using enum Activity;
  // Evicted windows are candidates of the oracle; window 5 has no tier yet; 1 and 2 tie.
  EXPECT_THAT(oracle_activity(tiers_of("FQEFQ-"), std::vector<float>{1, 5, 5, 0, 2, 9}),
              ElementsAre(inactive, active, active, inactive, inactive, absent));
  EXPECT_THAT(oracle_activity(tiers_of("FQEQ"), std::vector<float>{1, 5, 5, 0}),
              ElementsAre(inactive, active, inactive, inactive));
  EXPECT_THAT(oracle_activity(tiers_of("QE"), std::vector<float>{1, 5}), ElementsAre(inactive, inactive));
}

TEST(QFmm, MeanMassOfWhatIsEvictedSoFar) {
  MissedMassTracker tracker(3);
  PlainMean fmm;
  tracker.event(tiers_of("FEQE"));  // after step 24: window 3 was evicted earlier, window 1 now
  tracker.step(std::vector<float>{0.5f, 0.02f, 0.1f, 0.01f}, fmm);
  tracker.event(tiers_of("FEQEE"));  // a later event's evictions are not this one's
  tracker.step(std::vector<float>{0.5f, 0.00f, 0.1f, 0.05f, 0.3f}, fmm);
  EXPECT_EQ(fmm.value(), std::nullopt);
  tracker.step(std::vector<float>{0.5f, 0.07f, 0.1f, 0.00f, 0.3f}, fmm);
  EXPECT_THAT(fmm.value(), about(0.05));
  EXPECT_EQ(fmm.count, 1);  // the second event has fewer than 3 later steps: left out
}

TEST(QFmm, OnlyTheNewlyEvictedAreAnotherReading) {
  MissedMassTracker tracker(3);
  PlainMean fmm;
  tracker.event(tiers_of("FEQQ"));
  for (const float mass : {0.02f, 0.00f, 0.07f}) tracker.step(std::vector<float>{0, mass, 0, 0.5f}, fmm);
  EXPECT_THAT(fmm.value(), about(0.03));
}

IntervalMass example_interval() {
  const auto tiers = tiers_of("FQQEFQ");
  IntervalMass mass;
  mass.add_step(tiers, std::vector<float>{.10f, .05f, .08f, .06f, .12f, .04f}, .30, .25,
                std::vector<float>{.11f, .06f, .07f, 0, .13f, .03f});  // .16 on the Q windows
  mass.add_step(tiers, std::vector<float>{.02f, .03f, .01f, .08f, .04f, .02f}, .40, .40,
                std::vector<float>{.02f, .02f, .02f, 0, .04f, .01f});  // .05
  return mass;
}

TEST(QTier, SharesOfSumsOverTheInterval) {
  const IntervalMass mass = example_interval();
  EXPECT_NEAR(mass.full, 0.28, 1e-6);
  EXPECT_NEAR(mass.quantized, 0.23, 1e-6);
  EXPECT_NEAR(mass.evicted, 0.14, 1e-6);
  EXPECT_THAT(mass.full_share().value(), about(0.430769));
  EXPECT_THAT(mass.quantized_share().value(), about(0.353846));
  EXPECT_THAT(mass.evicted_share().value(), about(0.215385));
  EXPECT_THAT(mass.sinks_share().value(), about(0.35));
  EXPECT_THAT(mass.recent_share().value(), about(0.325));
  EXPECT_EQ(IntervalMass{}.full_share().value(), std::nullopt);
}

TEST(QTier, WindowsWithoutATierBelongToNone) {
  IntervalMass mass;
  mass.add_step(tiers_of("F-"), std::vector<float>{.2f, .3f, .1f}, .1, .7, {});
  EXPECT_THAT(mass.full_share().value(), about(1));
  EXPECT_THAT(mass.recent_share().value(), about(0.7));
}

TEST(QRq, RatioOfSums) {
  const IntervalMass mass = example_interval();
  EXPECT_THAT(mass.rq().value(), about(0.913043));
  PooledRatio pooled = mass.rq();
  pooled.add(mass.rq());
  EXPECT_THAT(pooled.value(), about(0.913043));
  EXPECT_EQ(IntervalMass{}.rq().value(), std::nullopt);
}

TEST(QQsa, CosineOverTheQuantizedWindows) {
  const auto tiers = tiers_of("FQQEFQ");
  const std::vector<float> policy = {9, 1, 2, 0, 9, 0.5f}, reference = {1, 1.2f, 1.8f, 7, 1, 0.7f};
  EXPECT_THAT(quantized_score_agreement(tiers, policy, reference), about(0.988513));
  EXPECT_EQ(quantized_score_agreement(tiers_of("FQFEFE"), policy, reference), std::nullopt);
  EXPECT_EQ(quantized_score_agreement(tiers_of("FFFEFE"), policy, reference), std::nullopt);
  EXPECT_EQ(quantized_score_agreement(tiers, std::vector<float>(6), reference), std::nullopt);
}

}  // namespace
}  // namespace qevict
