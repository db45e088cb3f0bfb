#include "kernels/rotation_table.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "kernels/kernel_test_support.h"

namespace qevict {
namespace {

// Differences of a last bit of a float at most: both work in double.
TEST(WindowRotation, TurnsEveryKeyAsRopeDoesAtItsPosition) {
  Rng rng(1);
  for (const bool neox : {false, true}) {
    for (const int key_dim : {64, 72}) {  // all channels turned, or not
      for (const int tokens : {1, 8, 32}) {
        Rope rope = test_rope(32, neox);
        rope.magnitude = 1.25f;
        const WindowRotation& rotation = window_rotation(rope, tokens);
        for (const std::int64_t first : {std::int64_t{0}, std::int64_t{7683}, std::int64_t{1} << 28}) {
          std::vector<float> keys(static_cast<std::size_t>(tokens * key_dim));
          for (float& key : keys) key = static_cast<float>(rng.normal());
          std::vector<float> rotated = keys, unrotated = keys;
          rotation.rotate(rotated, key_dim, first);
          rotation.unrotate(unrotated, key_dim, first);
          for (int t = 0; t < tokens; ++t) {
            const std::span<const float> key = std::span(keys).subspan(static_cast<std::size_t>(t * key_dim), key_dim);
            std::vector<float> forth(key.begin(), key.end()), back = forth;
            rope.rotate(forth, static_cast<double>(first + t));
            rope.unrotate(back, static_cast<double>(first + t));
            for (int d = 0; d < key_dim; ++d) {
              ASSERT_NEAR(rotated[static_cast<std::size_t>(t * key_dim + d)], forth[static_cast<std::size_t>(d)], 4e-7);
              ASSERT_NEAR(unrotated[static_cast<std::size_t>(t * key_dim + d)], back[static_cast<std::size_t>(d)],
                          4e-7);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace qevict
