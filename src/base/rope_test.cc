#include "base/rope.h"

#include <gtest/gtest.h>

#include <array>

namespace qevict {
namespace {

// Pairs (0,2) at angle p, (1,3) at angle p/100: the rotation of Q-ATTN.
Rope example_rope() { return {.frequency = {1.0f, 0.01f}, .magnitude = 1.0f, .neox = true}; }

TEST(Rope, RotatesTheQueryOfQAttn1) {
  std::array<float, 4> query = {1.0f, -0.5f, 0.75f, 1.5f};
  example_rope().rotate(query, 4);
  EXPECT_NEAR(query[0], -0.086042f, 1e-6f);
  EXPECT_NEAR(query[1], -0.559584f, 1e-6f);
  EXPECT_NEAR(query[2], -1.247035f, 1e-6f);
  EXPECT_NEAR(query[3], 1.478805f, 1e-6f);
}

TEST(Rope, UnrotatingUndoesRotationAndItsMagnitude) {
  for (const bool neox : {false, true}) {
    const Rope rope{.frequency = {0.7f, 0.01f}, .magnitude = 1.3f, .neox = neox};
    const std::array<float, 6> original = {1.0f, -2.0f, 0.5f, 3.0f, 7.0f, -9.0f};  // channels 4, 5 are not rotated
    std::array<float, 6> head = original;
    rope.rotate(head, 7681);
    EXPECT_EQ(head[4], 7.0f);
    EXPECT_EQ(head[5], -9.0f);
    EXPECT_GT(std::abs(head[0] - original[0]), 0.1f);
    rope.unrotate(head, 7681);
    for (int i = 0; i < 6; ++i) EXPECT_NEAR(head[i], original[i], 1e-5f);
  }
}

}  // namespace
}  // namespace qevict
