// Lloyd-Max codes of the unit normal at 2, 3 and 4 bits. The decimals of qevict.md 6.2 are the constants, not the exact
// optimum; code j is the j-th level in ascending order, boundaries are midpoints, a value on a boundary takes the upper
// code.
#pragma once

#include <cstdint>
#include <span>

namespace qevict {

std::span<const float> lloyd_max_levels(int bits);      // [2^bits], ascending; bits 2..4
std::span<const float> lloyd_max_boundaries(int bits);  // [2^bits - 1]

inline std::uint8_t lloyd_max_code(std::span<const float> boundaries, float value) {
  int code = 0;
  for (const float boundary : boundaries) code += value >= boundary;
  return static_cast<std::uint8_t>(code);
}

}  // namespace qevict
