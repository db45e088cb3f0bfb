#include "routing/spending.h"

#include <gtest/gtest.h>

#include <vector>

namespace qevict {
namespace {

std::vector<Candidate> candidates(std::initializer_list<float> scores, Tier tier = Tier::none) {
  std::vector<Candidate> result;
  for (const float score : scores) result.push_back({static_cast<std::int64_t>(result.size()), tier, score});
  return result;
}

constexpr SpendingRule rule_of(std::size_t full, std::size_t quantized, double loss) {
  return {.costs = {.full_slot_bytes = full, .quantized_slot_bytes = quantized}, .by_gain = true, .loss = loss};
}
constexpr SpendingRule kRule = rule_of(500, 100, 0.1);

TEST(SpendByGain, FlatScoresBuyCoverage) {
  const TierCapacity split = spend(candidates({1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), kRule, 1000);
  EXPECT_EQ(split.full, 0);
  EXPECT_EQ(split.quantized, 10);
}

TEST(SpendByGain, OneHeavyWindowIsBoughtWhole) {
  const TierCapacity split = spend(candidates({100, 1, 1, 1, 1, 1, 1, 1, 1, 1}), kRule, 1000);
  EXPECT_EQ(split.full, 1);
  EXPECT_EQ(split.quantized, 5);
}

TEST(SpendByGain, WhatIsLeftOverBuysPrecision) {
  const TierCapacity split = spend(candidates({1, 1, 1}), kRule, 1000);
  EXPECT_EQ(split.full, 1) << "three windows of codes take 300 of 1000";
  EXPECT_GE(split.quantized, 2);
}

TEST(SpendByGain, NegativeScoresBuyAsMuch) {
  const TierCapacity split = spend(candidates({-1, -2, -3, -4, -5, -6, -7, -8, -9, -10}), kRule, 1000);
  EXPECT_GE(split.full + split.quantized, 6);
}

TEST(SpendByGain, WindowsQuantizedOnceStayCodes) {
  const TierCapacity split = spend(candidates({100, 1, 1}, Tier::quantized), kRule, 1000);
  EXPECT_EQ(split.full, 0);
  EXPECT_EQ(split.quantized, 10);
}

TEST(SpendByGain, NeverSpendsMoreThanThereIs) {
  for (std::size_t bytes = 0; bytes < 3000; bytes += 7) {
    const TierCapacity split = spend(candidates({9, 5, 4, 3, 2, 1, 0}), rule_of(520, 92, 0.2), bytes);
    EXPECT_LE(static_cast<std::size_t>(split.full) * 520 + static_cast<std::size_t>(split.quantized) * 92, bytes);
  }
}

// qevict.md section 2: ⌊⌊q H⌋ / slot⌋ and ⌊(H − ⌊q H⌋) / slot⌋.
TEST(Spend, AFixedShareSplitsTheBytes) {
  const SpendingRule rule{.costs = {.full_slot_bytes = 2600, .quantized_slot_bytes = 552}, .quantized_per_mille = 700};
  const TierCapacity split = spend({}, rule, 20001);
  EXPECT_EQ(split.quantized, 14000 / 552);
  EXPECT_EQ(split.full, 6001 / 2600);
}

TEST(Spend, WithoutAQuantizedTierEverythingIsFull) {
  const SpendingRule rule{.costs = {.full_slot_bytes = 2000, .quantized_slot_bytes = 0}};
  EXPECT_EQ(spend({}, rule, 20001).full, 10);
  EXPECT_EQ(spend({}, rule, 20001).quantized, 0);
}

}  // namespace
}  // namespace qevict
