// Asymmetric codes of a group between its minimum and maximum, with scale and zero in f16: of int2, int4 and kivi-*.
//
//   scale = f16(max((max - min) / (2^b - 1), 1e-8)),  zero = f16(min)         saturated at 65504
//   code  = clamp(round half even((x - zero) / scale), 0, 2^b - 1), from the stored numbers; 0 where the stored
//   scale is 0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/half.h"

namespace qevict {

struct MinMaxGroup {
  Half scale;
  Half zero;
};

// Unrotated keys can leave the range of f16 by a little: hence saturated.
inline MinMaxGroup min_max_group(float lowest, float highest, int bits) {
  const float steps = static_cast<float>((1 << bits) - 1);
  return {to_half_saturated(std::max((highest - lowest) / steps, 1e-8f)), to_half_saturated(lowest)};
}

// What min_max_code divides by: the stored scale, or infinity where that is 0, so that all codes are 0 then.
inline float min_max_divisor(Half scale) {
  const float value = to_float(scale);
  return value == 0.0f ? std::numeric_limits<float>::infinity() : value;
}

// Without branches, so that compilers make vectors of a loop over it.
inline std::uint8_t min_max_code(float value, float divisor, float zero, int bits) {
  const float steps = static_cast<float>((1 << bits) - 1);
  const float clamped = std::min(std::max((value - zero) / divisor, 0.0f), steps);
  constexpr float kNoFraction = 0x1.8p23f;  // adding it rounds to the nearest integer, ties to even
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(clamped + kNoFraction));
}

}  // namespace qevict
