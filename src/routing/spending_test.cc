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

constexpr SlotCosts kCosts{.history_bytes = 1000, .full_slot_bytes = 500, .quantized_slot_bytes = 100};

TEST(SpendByGain, FlatScoresBuyCoverage) {
  const TierCapacity split = spend_by_gain(candidates({1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), kCosts, 0.1);
  EXPECT_EQ(split.full, 0);
  EXPECT_EQ(split.quantized, 10);
}

TEST(SpendByGain, OneHeavyWindowIsBoughtWhole) {
  const TierCapacity split = spend_by_gain(candidates({100, 1, 1, 1, 1, 1, 1, 1, 1, 1}), kCosts, 0.1);
  EXPECT_EQ(split.full, 1);
  EXPECT_EQ(split.quantized, 5);
}

TEST(SpendByGain, WhatIsLeftOverBuysPrecision) {
  const TierCapacity split = spend_by_gain(candidates({1, 1, 1}), kCosts, 0.1);
  EXPECT_EQ(split.full, 1) << "three windows of codes take 300 of 1000";
  EXPECT_GE(split.quantized, 2);
}

TEST(SpendByGain, WindowsQuantizedOnceStayCodes) {
  const TierCapacity split = spend_by_gain(candidates({100, 1, 1}, Tier::quantized), kCosts, 0.1);
  EXPECT_EQ(split.full, 0);
  EXPECT_EQ(split.quantized, 10);
}

TEST(SpendByGain, NeverSpendsMoreThanThereIs) {
  for (std::size_t bytes = 0; bytes < 3000; bytes += 7) {
    const SlotCosts costs{.history_bytes = bytes, .full_slot_bytes = 520, .quantized_slot_bytes = 92};
    const TierCapacity split = spend_by_gain(candidates({9, 5, 4, 3, 2, 1, 0}), costs, 0.2);
    EXPECT_LE(static_cast<std::size_t>(split.full) * 520 + static_cast<std::size_t>(split.quantized) * 92, bytes);
  }
}

}  // namespace
}  // namespace qevict
