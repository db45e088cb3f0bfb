#include "codec/scale8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace qevict {
namespace {

TEST(QScale8, Table) {
  struct Case {
    double scale;
    int code;
    double value, tolerance;
  };
  const Case cases[] = {{1, 176, 1.0, 0},
                        {0.5, 164, 0.5, 0},
                        {0.9, 174, 0.890899, 5e-7},
                        {1.05, 177, 1.059463, 5e-7},
                        {1.28, 180, 1.259921, 5e-7},
                        {3.7, 199, 3.775497, 5e-7},
                        {0.0123, 100, 0.012402, 5e-7},
                        {1e-6, 1, 4.0736e-5, 5e-10},
                        {500, 255, 95.891653, 4e-6},
                        {0, 0, 0.0, 0}};
  for (const Case& c : cases) {
    EXPECT_EQ(scale8_of(c.scale), c.code) << c.scale;
    EXPECT_NEAR(scale8_value(scale8_of(c.scale)), c.value, c.tolerance) << c.scale;
  }
  EXPECT_NEAR(scale8_value(177) / scale8_value(176), 1.059463, 5e-7);
}

TEST(QScale8, LargestRelativeErrorInsideTheRange) {
  double up = 0, down = 0;
  for (double scale = 4.1e-5; scale < 95; scale *= 1.00001) {
    const double error = scale8_value(scale8_of(scale)) / scale - 1;
    up = std::max(up, error);
    down = std::max(down, -error);
  }
  EXPECT_NEAR(up, 0.029302, 2e-5);
  EXPECT_NEAR(down, 0.028468, 2e-5);
}

TEST(QScale8, EveryCodeIsItsOwnValuesCode) {
  for (int code = 0; code < 256; ++code) EXPECT_EQ(scale8_of(scale8_value(static_cast<std::uint8_t>(code))), code);
}

}  // namespace
}  // namespace qevict
