// Scales of tokens in 8 bits: 0 stands for 0, e = 1..255 for 2^((e-176)/12), i.e. 4.07e-5 .. 95.9 in steps of 5.9 %.
#pragma once

#include <cstdint>

namespace qevict {

// scale >= 0; only 0 gives 0. Scales outside the range take the nearest end.
std::uint8_t scale8_of(double scale);

// [256]
const float* scale8_table();
inline float scale8_value(std::uint8_t code) { return scale8_table()[code]; }

}  // namespace qevict
