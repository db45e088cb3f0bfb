#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>

namespace qevict {
namespace {

TEST(Half, EveryFiniteHalfSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_half(value))));
    } else {
      EXPECT_EQ(to_half(value), half) << bits;
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(to_half(1.0f + 0x1p-11f).bits, 0x3c00);             // halfway: even below
  EXPECT_EQ(to_half(1.0f + 3 * 0x1p-11f).bits, 0x3c02);         // halfway: even above
  EXPECT_EQ(to_half(1.0f + 0x1p-11f + 0x1p-20f).bits, 0x3c01);  // just above halfway
  EXPECT_EQ(to_half(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(to_half(3 * 0x1p-25f).bits, 0x0002);
  EXPECT_EQ(to_half(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_half_saturated(1e9f).bits, 0x7bff);
  EXPECT_EQ(to_half_saturated(-65536.0f).bits, 0xfbff);
}

}  // namespace
}  // namespace qevict
