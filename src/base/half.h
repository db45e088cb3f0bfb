// IEEE half precision as stored in the cache, and its scalar conversions (round to nearest, ties to even).
// Hot loops convert in SIMD (kernels/); these are for tests, codecs and the odd value.
#pragma once

#include <bit>
#include <cstdint>

namespace qevict {

struct Half {
  std::uint16_t bits = 0;
  friend bool operator==(Half, Half) = default;
};

// Masks instead of branches, so that loops of it become vectors.
inline float to_float(Half half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = half.bits & 0x7fffu;
  // Zero or subnormal: an integer number of 2^-24.
  const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  const std::uint32_t is_small = 0u - static_cast<std::uint32_t>(magnitude < 0x0400u);
  const std::uint32_t is_special = 0u - static_cast<std::uint32_t>(magnitude >= 0x7c00u);  // infinity or NaN
  const std::uint32_t normal = (magnitude << 13) + (112u << 23) + (is_special & 112u << 23);
  return std::bit_cast<float>(sign | (is_small & std::bit_cast<std::uint32_t>(small)) | (~is_small & normal));
}

// Values beyond the range become infinity, as IEEE says; use to_half_saturated where that must not happen.
inline Half to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 aligns the mantissa to units of 2^-24 and rounds to even
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23);
  return {static_cast<std::uint16_t>(sign | rounded >> 13)};
}

// The largest finite half is 65504; a reconstructed value beyond it stays finite (qevict-examples.md A13).
inline Half to_half_saturated(float value) {
  if (value > 65504.0f) return {0x7bffu};
  if (value < -65504.0f) return {0xfbffu};
  return to_half(value);
}

}  // namespace qevict
