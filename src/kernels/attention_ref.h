// Attention written as the formula says, in double precision: what every faster kernel is measured against, and the
// target "reference".
#pragma once

#include <vector>

#include "kernels/attention.h"

namespace qevict {

// Same contract as attend_decode. Codes go through the codec's own decode, then, unless it holds keys after RoPE,
// Rope::rotate at their true positions.
void attend_decode_reference(const HeadShape& shape, const HeadView& head, const TokenRange& range,
                             std::span<const float> query, float scale, std::span<float> weights,
                             std::size_t weight_stride, const PartialView& out);

// One query token over everything a prefill row sees: the f16 tokens of `past`, its code tokens, then n_visible tokens
// of the buffer, in this order.
struct ReferenceRow {
  std::vector<double> probability;  // [group][n_tokens]
  std::vector<double> out;          // [group][value_dim]
  std::size_t n_tokens = 0;
};
// keys, values: [n_visible][dim], after RoPE. query: [group][key_dim] after RoPE, not scaled. past may be null.
ReferenceRow attend_row_reference(const HeadShape& shape, const HeadView* past, const Half* keys, const Half* values,
                                  int n_visible, std::span<const float> query, float scale);

}  // namespace qevict
