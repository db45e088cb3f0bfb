#include "base/rng.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

TEST(SplitMix64, KnownWords) {
  SplitMix64 stream(0);
  EXPECT_EQ(stream.next(), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(stream.next(), 0x6E789E6AA1B965F4u);
}

TEST(Rng, SameSeedSameStream) {
  Rng first(7), second(7), other(8);
  for (int i = 0; i < 100; ++i) {
    const double value = first.normal();
    EXPECT_EQ(value, second.normal());
    EXPECT_NE(value, other.normal());
  }
}

TEST(Rng, DrawsStayInRangeAndHaveTheirMoments) {
  Rng rng(1);
  constexpr int kDraws = 200000;
  double uniform_sum = 0, normal_sum = 0, normal_squares = 0;
  int counts[5] = {};
  for (int i = 0; i < kDraws; ++i) {
    const double u = rng.uniform();
    ASSERT_TRUE(u >= 0.0 && u < 1.0);
    uniform_sum += u;
    const double z = rng.normal();
    normal_sum += z;
    normal_squares += z * z;
    const int k = rng.between(-2, 2);
    ASSERT_TRUE(k >= -2 && k <= 2);
    ++counts[k + 2];
  }
  // Five standard errors of each mean.
  EXPECT_NEAR(uniform_sum / kDraws, 0.5, 5 * 0.289 / 447);
  EXPECT_NEAR(normal_sum / kDraws, 0.0, 5 * 1.0 / 447);
  EXPECT_NEAR(normal_squares / kDraws, 1.0, 5 * 1.415 / 447);
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 5, 5 * 179);
}

}  // namespace
}  // namespace qevict
