// Shared by the prefill kernels of all targets: the parts of a stripe's scratch, and the compressed cache of earlier
// turns as blocks of f32 keys and values.
#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"

namespace qevict {

inline constexpr float kMasked = -1e30f;  // a logit whose weight is exactly 0

// Places of one stripe in its scratch, for kernels that keep a row of logits per query row.
struct StripeScratch {
  static std::size_t floats(const HeadShape& shape, int n_rows, std::size_t row_floats);
  explicit StripeScratch(const StripeTask& task);
  float* logits;         // [rows][row_floats], rows = n_rows * group
  float* query;          // [rows][key_dim] in the kernel's order, scaled
  float* acc;            // [rows][value_dim]
  float* inverse;        // [rows], 1 / denominator
  float* column_weight;  // [rows], inverse times the row's weight
  float* past_block;     // PastBlocks::floats()
};

// The tokens of task.past as blocks of at most kKeyBlock tokens: first its f16 tokens, then its code tokens. Codes are
// decoded a block at a time.
class PastBlocks {
 public:
  PastBlocks(const StripeTask& task, float* scratch);
  static std::size_t floats(const HeadShape& shape);
  // Columns of scratch and sums before those of the buffer.
  static std::size_t columns(const HeadView* past);
  static std::size_t f16_columns(const HeadView* past);

  std::size_t total_columns() const { return columns(task_.past); }
  bool next();
  void restart();
  int tokens() const { return tokens_; }
  std::size_t column() const { return column_; }
  const float* keys() const { return keys_; }  // [kKeyBlock][key_dim], after RoPE; 0 beyond tokens()
  const float* values() const { return values_; }
  // keys() as [group of `group` keys][key_dim][group].
  void pack_keys(int group);
  const float* packed_keys() const { return packed_; }

 private:
  void load_f16();
  void load_codes();

  const StripeTask& task_;
  float* keys_;
  float* values_;
  float* packed_;
  int begin_ = 0;  // of the block, in the f16 list or the code list
  int tokens_ = 0;
  bool codes_ = false;
  std::size_t column_ = 0;
};

}  // namespace qevict
