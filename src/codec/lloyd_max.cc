#include "codec/lloyd_max.h"

#include "base/check.h"

namespace qevict {
namespace {

constexpr float kLevels2[] = {-1.510f, -0.4528f, 0.4528f, 1.510f};
constexpr float kLevels3[] = {-2.152f, -1.344f, -0.7560f, -0.2451f, 0.2451f, 0.7560f, 1.344f, 2.152f};
constexpr float kLevels4[] = {-2.733f, -2.069f, -1.618f, -1.256f, -0.9424f, -0.6568f, -0.3881f, -0.1284f,
                              0.1284f, 0.3881f, 0.6568f, 0.9424f, 1.256f,   1.618f,   2.069f,   2.733f};

constexpr float kBoundaries2[] = {-0.9814f, 0.0f, 0.9814f};
constexpr float kBoundaries3[] = {-1.748f, -1.05f, -0.50055f, 0.0f, 0.50055f, 1.05f, 1.748f};
constexpr float kBoundaries4[] = {-2.401f,  -1.8435f, -1.437f, -1.0992f, -0.7996f, -0.52245f, -0.25825f, 0.0f,
                                  0.25825f, 0.52245f, 0.7996f, 1.0992f,  1.437f,   1.8435f,   2.401f};

}  // namespace

std::span<const float> lloyd_max_levels(int bits) {
  QEVICT_CHECK(bits >= 2 && bits <= 4, "Lloyd-Max codes have 2 to 4 bits");
  if (bits == 2) return kLevels2;
  if (bits == 3) return kLevels3;
  return kLevels4;
}

std::span<const float> lloyd_max_boundaries(int bits) {
  QEVICT_CHECK(bits >= 2 && bits <= 4, "Lloyd-Max codes have 2 to 4 bits");
  if (bits == 2) return kBoundaries2;
  if (bits == 3) return kBoundaries3;
  return kBoundaries4;
}

}  // namespace qevict
