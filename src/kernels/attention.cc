#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernel_table.h"

namespace qevict {

std::vector<TokenRange> cut_ranges(int f16_tokens, int code_tokens, int window_tokens) {
  std::vector<TokenRange> ranges;
  for (int begin = 0; begin < f16_tokens; begin += kRangeTokens)
    ranges.push_back({begin, std::min(begin + kRangeTokens, f16_tokens), false});
  const int step = window_tokens < kRangeTokens ? kRangeTokens / window_tokens * window_tokens : window_tokens;
  for (int begin = 0; begin < code_tokens; begin += step)
    ranges.push_back({begin, std::min(begin + step, code_tokens), true});
  return ranges;
}

void attend_decode(const HeadShape& shape, const HeadView& head, const TokenRange& range, std::span<const float> query,
                   float scale, std::span<float> weights, std::size_t weight_stride, const PartialView& out) {
  const KernelTable& kernels = active_kernels();
  const DecodeTask task{shape, head, range, query.data(), scale, weights.data(), weight_stride, out};
  if (!range.codes) return kernels.decode_f16(task);
  for (const auto reads_codes : {kernels.decode_codes_fast, kernels.decode_blocks})
    if (reads_codes != nullptr && reads_codes(task)) return;
  kernels.decode_codes(task);
}

void attend_rows(int key_dim, std::span<const float> keys, std::span<const float> queries, std::span<const int> seen,
                 float scale, std::span<float> out) {
  active_kernels().attend_rows({.keys = keys.data(),
                                .queries = queries.data(),
                                .seen = seen.data(),
                                .out = out.data(),
                                .n_tokens = static_cast<int>(keys.size()) / key_dim,
                                .n_queries = static_cast<int>(seen.size()),
                                .key_dim = key_dim,
                                .scale = scale});
}

void merge_partial(const HeadShape& shape, const PartialView& into, const PartialView& other) {
  for (int g = 0; g < shape.group; ++g) {
    if (other.denom[g] == 0.0f) continue;  // and -inf minus -inf never happens
    const float max = std::max(into.max[g], other.max[g]);
    const float keep = into.denom[g] == 0.0f ? 0.0f : std::exp(into.max[g] - max);
    const float add = std::exp(other.max[g] - max);
    into.max[g] = max;
    into.denom[g] = keep * into.denom[g] + add * other.denom[g];
    float* acc = into.acc + std::ptrdiff_t{g} * shape.value_dim;
    const float* other_acc = other.acc + std::ptrdiff_t{g} * shape.value_dim;
    for (int d = 0; d < shape.value_dim; ++d) acc[d] = keep * acc[d] + add * other_acc[d];
  }
}

}  // namespace qevict
