#include "codec/scale8.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace qevict {

std::uint8_t scale8_of(double scale) {
  if (!(scale > 0.0)) return 0;
  return static_cast<std::uint8_t>(std::clamp(std::round(12.0 * std::log2(scale)) + 176.0, 1.0, 255.0));
}

const float* scale8_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int e = 1; e < 256; ++e) values[e] = static_cast<float>(std::exp2((e - 176) / 12.0));
    return values;
  }();
  return table.data();
}

}  // namespace qevict
