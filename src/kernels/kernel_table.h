// What one SIMD target provides: coarse functions over views, chosen once. Internal to the kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/attention.h"

namespace qevict {

struct DecodeTask {
  const HeadShape& shape;
  const HeadView& head;
  TokenRange range;
  const float* query;  // [group][key_dim], after RoPE, not scaled
  float scale;
  float* weights;  // [group][weight_stride]
  std::size_t weight_stride;
  PartialView out;
};

// Keys and values of one head as the target's prefill kernel reads them.
struct PackedHead {
  const Half* keys;          // [size][key_dim], the f16 buffer itself
  const Half* values;        // [size][value_dim]
  std::byte* packed_keys;    // layout of the target
  std::byte* packed_values;  // layout of the target
};

// One window of codes as f32 keys [tokens][key_dim], after RoPE, and values [tokens][value_dim].
using WindowDecoder = void (*)(const HeadView& head, const CodeWindow& code, float* keys, float* values);

inline constexpr int kKeyBlock = 64;  // keys per block of a prefill kernel; buffers are padded to it

// Consecutive rows of one head, all group heads of each: rows first_row .. first_row + n_rows - 1 of the buffer.
struct StripeTask {
  const HeadShape& shape;
  const HeadView* past;  // null: none
  WindowDecoder decode_window;
  PackedHead head;
  const float* query;        // of the first row: [n_rows] rows of row_stride floats, each [group][key_dim]
  std::size_t query_stride;  // floats from row to row
  float* out;                // likewise, [group][value_dim]
  std::size_t out_stride;
  int first_row;
  int n_rows;
  float scale;
  // Column sums of the lane, or null: [past f16, padded][past codes, padded][buffer, padded]; each a multiple of
  // kKeyBlock.
  float* sums;
  int score_power;           // of the rows' means over the group
  const float* row_weights;  // of the first row, or null
  float* scratch;            // PrefillKernels::scratch_floats(), aligned to 64 bytes
  std::size_t row_floats;    // columns of all three segments
};

inline constexpr int padded(int tokens) { return (tokens + kKeyBlock - 1) / kKeyBlock * kKeyBlock; }

struct PrefillKernels {
  int stripe_rows;  // query rows handled together: a constant of the target
  // Bytes of one head's packed keys (dim = key_dim) or values (value_dim); tokens is a multiple of kKeyBlock. Zero
  // before the first pack().
  std::size_t (*packed_bytes)(int tokens, int dim);
  std::size_t (*scratch_floats)(const HeadShape& shape, int n_rows, std::size_t row_floats);
  // Packs tokens [begin, end) of the f16 buffer.
  void (*pack)(const HeadShape& shape, const PackedHead& head, int begin, int end);
  void (*stripe)(const StripeTask& task);
  bool raises;  // it can raise the rows' means to task.score_power
};

// Softmax of n_queries rows over tokens that all share: row r sees the first seen[r] of them.
struct RowsTask {
  const float* keys;     // [n_tokens][key_dim]
  const float* queries;  // [n_queries][key_dim], not scaled
  const int* seen;       // [n_queries], at least 1
  float* out;            // [n_queries][n_tokens] probabilities, 0 for what a row does not see
  int n_tokens;
  int n_queries;
  int key_dim;
  float scale;
};

// Attention over codes as they lie, of some codecs and shapes; returns false, having done nothing, for others.
using CodeReader = bool (*)(const DecodeTask& task);

struct KernelTable {
  std::string_view name;
  void (*decode_f16)(const DecodeTask& task);
  void (*decode_codes)(const DecodeTask& task);  // any codec
  // Tried in this order before decode_codes; null: none.
  std::array<CodeReader, 3> read_codes;
  WindowDecoder decode_window;
  PrefillKernels prefill;
  void (*attend_rows)(const RowsTask& task);
};

const KernelTable& reference_kernels();
// Tables of this machine, best first; the reference last.
std::span<const KernelTable* const> kernel_tables();
const KernelTable& active_kernels();

}  // namespace qevict
