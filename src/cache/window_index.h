// The index of one tier of one head: which windows it holds and in which slot, in ascending window id.
//
// An entry packs (id, ledger mark, slot) into one integer of 4 bytes (8 where the context is so long that 4 do not do),
// so sorting entries sorts ids. This is all the indexing that outlives a step; it is counted.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "cache/byte_meter.h"

namespace qevict {

class WindowIndex {
 public:
  struct Entry {
    std::int64_t window = 0;  // id
    int slot = 0;
    bool ledger = false;  // a full-precision window that has a ledger entry
  };

  static std::size_t entry_bytes_for(int slots, std::int64_t max_windows) {
    const int bits = slot_bits_for(slots) + 1 + std::bit_width(static_cast<std::uint64_t>(max_windows));
    return bits <= 32 ? sizeof(std::uint32_t) : sizeof(std::uint64_t);
  }

  WindowIndex() = default;
  WindowIndex(ByteMeter& meter, int capacity, std::size_t entry_bytes);

  int size() const { return size_; }
  int capacity() const { return capacity_; }
  std::size_t entry_bytes() const { return wide_ ? sizeof(std::uint64_t) : sizeof(std::uint32_t); }
  Entry operator[](int i) const { return unpack(packed(i)); }
  // Position of the window, or of the first one above it.
  int lower_bound(std::int64_t window) const;
  bool contains(std::int64_t window) const;
  // REQUIRES: size() < capacity(), the window and the slot are not in use.
  void insert(const Entry& entry);
  // REQUIRES: contains(window). Returns the entry.
  Entry erase(std::int64_t window);
  // Slots no entry uses, the lowest last.
  std::vector<int> free_slots() const;

 private:
  static int slot_bits_for(int slots) { return slots <= 1 ? 1 : std::bit_width(static_cast<unsigned>(slots - 1)); }
  std::uint64_t packed(int i) const {
    return wide_ ? entries_.as<std::uint64_t>()[i] : entries_.as<std::uint32_t>()[i];
  }
  void store(int i, std::uint64_t value);
  std::uint64_t pack(const Entry& entry) const {
    return (static_cast<std::uint64_t>(entry.window) << 1 | (entry.ledger ? 1u : 0u)) << slot_bits_ |
           static_cast<std::uint64_t>(entry.slot);
  }
  Entry unpack(std::uint64_t value) const {
    return {.window = static_cast<std::int64_t>(value >> (slot_bits_ + 1)),
            .slot = static_cast<int>(value & ((std::uint64_t{1} << slot_bits_) - 1)),
            .ledger = (value >> slot_bits_ & 1) != 0};
  }

  Buffer entries_;  // [capacity], the first size_ in use, ascending
  int size_ = 0;
  int capacity_ = 0;
  int slot_bits_ = 1;
  bool wide_ = false;
};

}  // namespace qevict
