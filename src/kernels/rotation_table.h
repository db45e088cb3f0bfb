// Cosines and sines of a Rope at any position, from two small tables: position = 64 * block + offset.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/rope.h"
#include "kernels/attention.h"

namespace qevict {

inline constexpr int kOffsets = 64;                // positions of a block
inline constexpr int kMaxTablePosition = 1 << 22;  // beyond it callers use Rope::rotate

// Rows of floats, one per block of positions, made on first use and kept. Safe from any number of threads.
class BlockRows {
 public:
  // fill writes the row of a position.
  BlockRows(std::size_t row_floats, std::function<void(double position, float* row)> fill);
  ~BlockRows();
  BlockRows(const BlockRows&) = delete;
  BlockRows& operator=(const BlockRows&) = delete;
  const float* row(int block) const;

 private:
  static constexpr int kRowsPerPage = 64;
  static constexpr int kPages = kMaxTablePosition / (kOffsets * kRowsPerPage);
  std::size_t row_floats_;
  std::function<void(double, float*)> fill_;
  mutable std::atomic<const float*> pages_[kPages] = {};
};

class RotationTable {
 public:
  explicit RotationTable(const Rope& rope);

  // Row: cos[padded_pairs()] then sin[padded_pairs()]; padding repeats the angle 0.
  int padded_pairs() const { return padded_pairs_; }
  // Angles of `offset` positions, 0 <= offset < kOffsets, without the magnitude.
  const float* offset_row(int offset) const { return offsets_.data() + std::size_t{2} * padded_pairs_ * offset; }
  // Angles of position kOffsets * block, times the magnitude.
  const float* block_row(int block) const { return blocks_.row(block); }

 private:
  int padded_pairs_;
  std::vector<float> offsets_;
  BlockRows blocks_;
};

// The table of a rope; the reference stays valid for the life of the process. Cheap when a thread asks for the same
// rope again.
const RotationTable& rotation_table(const Rope& rope);

// Turns the keys of whole windows, in double precision as Rope does: the angles of the offsets in a window are kept, so
// that only its first position costs cosines and sines. Positions below 2^29: then every angle is exact.
class WindowRotation {
 public:
  WindowRotation(const Rope& rope, int tokens);

  // In place, keys[tokens][key_dim], the first at position `first`.
  void rotate(std::span<float> keys, int key_dim, std::int64_t first) const;
  void unrotate(std::span<float> keys, int key_dim, std::int64_t first) const;

 private:
  void turn(std::span<float> keys, int key_dim, std::int64_t first, double sign, double scale) const;
  Rope rope_;
  int tokens_;
  std::vector<double> cosines_, sines_;  // [tokens][pairs]
};

const WindowRotation& window_rotation(const Rope& rope, int tokens);

// The same for keys behind codes of windows of 8 tokens, in integers and in the order of records (codec/record.h).
//
// Registers: 4 channels x 8 tokens of 16 bits, lane 4 * token + place. A register pair holds the two members of 4 RoPE
// pairs. Slots: the order of stored scales (PaperIntLayout::key_slot).
class CodeRotation {
 public:
  // What a kernel must do inside a window, whose middle the query is turned to: angles reach 3.5 frequencies.
  enum class Turn : std::uint8_t { full, small, none };  // small: cosines are 1; none: sines are 0 too

  CodeRotation(const Rope& rope, int key_dim);
  // Whether the register layout holds whole pairs.
  static bool fits(const Rope& rope, int key_dim);
  // That, and windows of 8 tokens at positions of the table, between 1 and max_tokens of them in the range.
  static bool fits_windows(const HeadView& head, const TokenRange& range, int key_dim, int max_tokens);

  const Turn* turns() const { return turns_.data(); }  // [key_dim / 8 register pairs]
  // [2][32] i16 of 2^15: cosines and sines of (token - 3.5) * frequency.
  const std::int16_t* in_window(int register_pair) const { return in_window_.data() + 64 * register_pair; }
  // [2][key_dim] i16 of 2^15 in register order: cosines and sines of offset + 3.5 positions.
  const std::int16_t* offset_row(int offset) const { return offsets_.data() + std::size_t{2} * key_dim_ * offset; }
  // [2][key_dim] f32 in slot order, times the magnitude.
  const float* block_row(int block) const { return blocks_.row(block); }
  // Magnitude of each channel in slot order: 1 where nothing turns.
  const float* magnitudes() const { return magnitudes_.data(); }
  // Channel at each slot, and the other member of its pair (itself if none) with the sign it has in q turned backwards:
  // turned[c] = q[c] cos + sign q[partner] sin.
  const std::int32_t* channels() const { return channels_.data(); }
  const std::int32_t* partners() const { return partners_.data(); }
  const float* signs() const { return signs_.data(); }

 private:
  int key_dim_;
  std::vector<std::int32_t> channels_, partners_;
  std::vector<float> signs_, magnitudes_;
  std::vector<Turn> turns_;
  std::vector<std::int16_t> in_window_;
  std::vector<std::int16_t> offsets_;
  BlockRows blocks_;
};

const CodeRotation& code_rotation(const Rope& rope, int key_dim);

}  // namespace qevict
