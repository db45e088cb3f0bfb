// Whether numbers are finite: over whole tensors in every step, so without a branch.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace qevict {

inline bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  std::uint32_t bad = 0;
  for (const float value : values)
    bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent);
  return bad == 0;
}

}  // namespace qevict
