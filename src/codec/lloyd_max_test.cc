#include "codec/lloyd_max.h"

#include <gtest/gtest.h>

#include <cmath>

namespace qevict {
namespace {

TEST(LloydMax, BoundariesAreMidpointsAndLevelsAreSymmetric) {
  for (int bits = 2; bits <= 4; ++bits) {
    const auto levels = lloyd_max_levels(bits), boundaries = lloyd_max_boundaries(bits);
    ASSERT_EQ(levels.size(), 1u << bits);
    ASSERT_EQ(boundaries.size(), levels.size() - 1);
    for (std::size_t j = 0; j < levels.size(); ++j) EXPECT_EQ(levels[j], -levels[levels.size() - 1 - j]);
    for (std::size_t j = 0; j < boundaries.size(); ++j)
      EXPECT_NEAR(boundaries[j], (static_cast<double>(levels[j]) + levels[j + 1]) / 2, 1e-7);
  }
}

TEST(LloydMax, ALevelIsItsOwnCode) {
  for (int bits = 2; bits <= 4; ++bits)
    for (int j = 0; j < 1 << bits; ++j)
      EXPECT_EQ(lloyd_max_code(lloyd_max_boundaries(bits), lloyd_max_levels(bits)[j]), j);
}

// The example's TIE: a value on a boundary takes the upper code.
TEST(LloydMax, Tie) {
  for (int bits = 2; bits <= 4; ++bits) {
    const auto boundaries = lloyd_max_boundaries(bits);
    for (std::size_t j = 0; j < boundaries.size(); ++j) {
      EXPECT_EQ(lloyd_max_code(boundaries, boundaries[j]), j + 1);
      EXPECT_EQ(lloyd_max_code(boundaries, std::nextafter(boundaries[j], -9.0f)), j);
    }
  }
  const auto two_bits = lloyd_max_boundaries(2);
  EXPECT_EQ(lloyd_max_code(two_bits, 0.0f), 2);
  EXPECT_EQ(lloyd_max_code(two_bits, -0.0f), 2);
  EXPECT_EQ(lloyd_max_code(two_bits, 0.9814f), 3);
  EXPECT_EQ(lloyd_max_code(two_bits, -0.9814f), 1);
}

}  // namespace
}  // namespace qevict
