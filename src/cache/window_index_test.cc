#include "cache/window_index.h"

#include <gtest/gtest.h>

#include <map>

#include "base/check.h"
#include "base/rng.h"

namespace qevict {
namespace {

TEST(WindowIndex, KeepsAscendingIds) {
  ByteMeter meter;
  WindowIndex index(meter, 4, 4);
  index.insert({.window = 70, .slot = 2, .ledger = true});
  index.insert({.window = 3, .slot = 0, .ledger = false});
  index.insert({.window = 12, .slot = 3, .ledger = false});
  ASSERT_EQ(index.size(), 3);
  EXPECT_EQ(index[0].window, 3);
  EXPECT_EQ(index[1].window, 12);
  EXPECT_EQ(index[2].window, 70);
  EXPECT_EQ(index[2].slot, 2);
  EXPECT_TRUE(index[2].ledger);
  EXPECT_FALSE(index[1].ledger);
  EXPECT_EQ(index.lower_bound(12), 1);
  EXPECT_EQ(index.lower_bound(13), 2);
  EXPECT_EQ(index.lower_bound(1000), 3);
  EXPECT_EQ(index.free_slots(), std::vector<int>{1});
  EXPECT_EQ(index.erase(12).slot, 3);
  EXPECT_EQ(index.free_slots(), (std::vector<int>{3, 1}));
  EXPECT_EQ(meter.bytes().metadata, 16u);
}

TEST(WindowIndex, BrokenPromisesAreCaught) {
  ByteMeter meter;
  WindowIndex index(meter, 2, 4);
  index.insert({.window = 1, .slot = 0, .ledger = false});
  EXPECT_THROW(index.insert({.window = 1, .slot = 1, .ledger = false}), BugError);
  EXPECT_THROW(index.erase(2), BugError);
  index.insert({.window = 2, .slot = 1, .ledger = false});
  EXPECT_THROW(index.insert({.window = 3, .slot = 1, .ledger = false}), BugError);
  index.erase(2);
  // 1 bit of slot and 1 of ledger leave 30 for the id.
  EXPECT_THROW(index.insert({.window = std::int64_t{1} << 30, .slot = 1, .ledger = false}), BugError);
  index.insert({.window = (std::int64_t{1} << 30) - 1, .slot = 1, .ledger = true});
  EXPECT_EQ(index[1].window, (std::int64_t{1} << 30) - 1);
  EXPECT_TRUE(index[1].ledger);
}

TEST(WindowIndex, EntriesAreNoWiderThanTheyMustBe) {
  EXPECT_EQ(WindowIndex::entry_bytes_for(0, 1), 4u);
  EXPECT_EQ(WindowIndex::entry_bytes_for(1024, (1 << 21) - 1), 4u);  // 10 + 1 + 21 bits
  EXPECT_EQ(WindowIndex::entry_bytes_for(1024, 1 << 21), 8u);
  EXPECT_EQ(WindowIndex::entry_bytes_for(1025, (1 << 21) - 1), 8u);
}

// Against a std::map, in both widths, with as many slots and ids as the width is said to hold.
TEST(WindowIndex, RandomInsertionsAndRemovals) {
  for (const std::size_t entry_bytes : {4u, 8u}) {
    for (const int capacity : {1, 2, 7, 64, 65}) {
      Rng rng(static_cast<std::uint64_t>(capacity) * 10 + entry_bytes);
      ByteMeter meter;
      WindowIndex index(meter, capacity, entry_bytes);
      EXPECT_EQ(index.entry_bytes(), entry_bytes);
      std::int64_t max_windows = 1;
      while (WindowIndex::entry_bytes_for(capacity, 2 * max_windows) <= entry_bytes &&
             max_windows < (std::int64_t{1} << 40)) {
        max_windows *= 2;
      }
      std::map<std::int64_t, WindowIndex::Entry> expected;
      for (int step = 0; step < 2000; ++step) {
        std::vector<int> free = index.free_slots();
        ASSERT_EQ(static_cast<int>(free.size()), capacity - static_cast<int>(expected.size()));
        if (!free.empty() && rng.below(2) == 0) {
          const WindowIndex::Entry entry{
              .window = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(max_windows))),
              .slot = free[rng.below(free.size())],
              .ledger = rng.below(2) == 0};
          if (expected.emplace(entry.window, entry).second) index.insert(entry);
        } else if (!expected.empty()) {
          const auto victim = std::next(expected.begin(), static_cast<std::ptrdiff_t>(rng.below(expected.size())));
          ASSERT_EQ(index.erase(victim->first).slot, victim->second.slot);
          expected.erase(victim);
        }
        ASSERT_EQ(index.size(), static_cast<int>(expected.size()));
        int i = 0;
        for (const auto& [window, entry] : expected) {
          ASSERT_EQ(index[i].window, window);
          ASSERT_EQ(index[i].slot, entry.slot);
          ASSERT_EQ(index[i].ledger, entry.ledger);
          ASSERT_TRUE(index.contains(window));
          ASSERT_EQ(index.lower_bound(window), i++);
        }
      }
      EXPECT_EQ(meter.bytes().metadata, static_cast<std::size_t>(capacity) * entry_bytes);
    }
  }
}

}  // namespace
}  // namespace qevict
