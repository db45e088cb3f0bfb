// Scales of tokens in 8 bits: 0 stands for 0, e = 1..255 for 2^((e-176)/12), i.e. 4.07e-5 .. 95.9 in steps of 5.9 %.
#pragma once

#include <cstdint>

namespace qevict {

// How a token's scale follows from its row y and the levels c of its codes.
// least_squares: <y,c> / <c,c>, the smallest error of the token. It shrinks every token (12 % at 2 bits), and what all
// have in common a sum over tokens does not average out. midway: the mean of that and <y,y> / <y,c>, which keeps y's
// length along itself but is noisier.
enum class ScaleRule : std::uint8_t { least_squares, midway };

// 0 where y is.
inline double token_scale(ScaleRule rule, double row_row, double row_level, double level_level) {
  if (row_row == 0.0) return 0.0;
  const double least_squares = row_level / level_level;
  return rule == ScaleRule::least_squares ? least_squares : (least_squares + row_row / row_level) / 2;
}

// scale >= 0; only 0 gives 0. Scales outside the range take the nearest end.
std::uint8_t scale8_of(double scale);

// [256]
const float* scale8_table();
inline float scale8_value(std::uint8_t code) { return scale8_table()[code]; }

}  // namespace qevict
