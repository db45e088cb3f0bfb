#include "cache/zones.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

TEST(QWin1, ZonesByPosition) {
  struct Row {
    int n, sinks, windows_r8, recent_r8, windows_r6, recent_r6;
  };
  const Row rows[] = {{0, 0, 0, 0, 0, 0},  {3, 3, 0, 0, 0, 0},   {5, 5, 0, 0, 0, 0},   {6, 5, 0, 1, 0, 1},
                      {13, 5, 0, 8, 0, 8}, {19, 5, 0, 14, 1, 6}, {21, 5, 1, 8, 1, 8},  {27, 5, 1, 14, 2, 6},
                      {29, 5, 2, 8, 2, 8}, {37, 5, 3, 8, 3, 8},  {40, 5, 3, 11, 3, 11}};
  for (const Row& row : rows) {
    const Zones r8{.sinks = 5, .window = 8, .recent = 8};
    const Zones r6{.sinks = 5, .window = 8, .recent = 6};
    EXPECT_EQ(r8.sinks_held(row.n), row.sinks) << row.n;
    EXPECT_EQ(r8.windows_left(row.n), row.windows_r8) << row.n;
    EXPECT_EQ(r8.recent_held(row.n), row.recent_r8) << row.n;
    EXPECT_EQ(r6.windows_left(row.n), row.windows_r6) << row.n;
    EXPECT_EQ(r6.recent_held(row.n), row.recent_r6) << row.n;
  }
}

// Walks the decode steps: windows leave, wait for the event after steps 8, 16, ..., and are then routed.
TEST(QWin2, WindowsWaitForTheirEvent) {
  struct Row {
    int n, s, windows, routed, f16_before, f16_after;
  };
  const Row rows[] = {{30, 6, 2, 2, 15, 15}, {30, 7, 3, 2, 16, 16}, {30, 8, 3, 3, 17, 9},  {30, 9, 3, 3, 10, 10},
                      {30, 16, 4, 4, 17, 9}, {36, 1, 3, 2, 16, 16}, {36, 7, 3, 2, 22, 22}, {36, 8, 3, 3, 23, 15},
                      {37, 7, 3, 3, 15, 15}, {37, 8, 4, 4, 16, 8},  {3, 18, 1, 0, 16, 16}, {3, 23, 1, 0, 21, 21},
                      {3, 24, 1, 1, 22, 14}};
  const Zones zones{.sinks = 5, .window = 8, .recent = 8};
  for (const Row& row : rows) {
    int routed = zones.windows_left(row.n);  // event 0
    for (int s = 1; s <= row.s; ++s) {
      const int held = row.n + s - zones.sinks - zones.window * routed;
      if (s == row.s) {
        EXPECT_EQ(held, row.f16_before) << row.n << " " << s;
      }
      if (s % 8 == 0) routed = zones.windows_left(row.n + s);
    }
    EXPECT_EQ(zones.windows_left(row.n + row.s), row.windows);
    EXPECT_EQ(routed, row.routed);
    EXPECT_EQ(row.n + row.s - zones.sinks - zones.window * routed, row.f16_after);
  }
}

TEST(QWin2, TheReserveIsReachedAndNeverExceeded) {
  for (const int recent : {6, 8, 64, 128}) {
    const Zones zones{.sinks = 5, .window = 8, .recent = recent};
    int most = 0;
    for (int n = 0; n < 400; ++n) {
      int routed = zones.windows_left(n);
      for (int s = 1; s <= 64; ++s) {
        most = std::max(most, n + s - zones.sinks - zones.window * routed);
        if (s % 8 == 0) routed = zones.windows_left(n + s);
      }
    }
    EXPECT_EQ(most, zones.recent_capacity(8));
    EXPECT_EQ(most, recent + 15);
  }
}

TEST(QWin3, APromptOf2048) {
  const Zones zones{.sinks = 5, .window = 8, .recent = 64};
  EXPECT_EQ(zones.windows_left(2048), 247);
  EXPECT_EQ(zones.first_position(247), 1981);
  EXPECT_EQ(zones.recent_held(2048), 67);
  EXPECT_EQ(zones.windows_left(2052), 247);
  EXPECT_EQ(zones.windows_left(2053), 248);
  EXPECT_EQ(zones.windows_left(2303), 279);
  EXPECT_EQ(zones.windows_left(2296), 278);
}

}  // namespace
}  // namespace qevict
