// Asymmetric codes of a group between its minimum and maximum, with scale and zero in f16: of int2, int4 and kivi-*.
//
//   scale = f16(max((max - min) / (2^b - 1), 1e-8)),  zero = f16(min)         saturated at 65504
//   code  = clamp(round half even((x - zero) / scale), 0, 2^b - 1), from the stored numbers; 0 where the stored
//   scale is 0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

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

struct MinMax {
  float lowest;
  float highest;
};
// Of +0 and -0 the first. REQUIRES: row is not empty.
inline MinMax min_max(std::span<const float> row) {
  constexpr std::size_t kLanes = 8;  // searched side by side
  float low[kLanes], high[kLanes];
  std::fill(low, low + kLanes, row.front());
  std::fill(high, high + kLanes, row.front());
  const float *at = row.data(), *end = at + row.size();
  for (; end - at >= static_cast<std::ptrdiff_t>(kLanes); at += kLanes)
    for (std::size_t k = 0; k < kLanes; ++k) {
      low[k] = std::min(low[k], at[k]);
      high[k] = std::max(high[k], at[k]);
    }
  float lowest = *std::min_element(low, low + kLanes), highest = *std::max_element(high, high + kLanes);
  for (; at < end; ++at) {
    lowest = std::min(lowest, *at);
    highest = std::max(highest, *at);
  }
  if (lowest == 0.0f) lowest = *std::min_element(row.begin(), row.end());
  if (highest == 0.0f) highest = *std::max_element(row.begin(), row.end());
  return {lowest, highest};
}

// What codes divide by: a stored scale of 0 gives codes of 0.
inline float min_max_divisor(float scale) { return scale == 0.0f ? std::numeric_limits<float>::infinity() : scale; }

inline std::uint8_t min_max_code(float value, float divisor, float zero, int bits) {
  const float steps = static_cast<float>((1 << bits) - 1);
  const float steps_up = (value - zero) / divisor;
  const float above = steps_up > 0.0f ? steps_up : 0.0f;
  const float clamped = above < steps ? above : steps;
  constexpr float kNoFraction = 0x1.8p23f;  // adding it rounds to the nearest integer, ties to even
  return static_cast<std::uint8_t>(static_cast<std::int32_t>(clamped + kNoFraction - kNoFraction));
}

}  // namespace qevict
