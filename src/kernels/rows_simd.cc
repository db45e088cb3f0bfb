// Probabilities of many queries over one head's tokens, in Highway: each key is loaded once for all queries.
#include <algorithm>
#include <vector>

#include "kernels/simd_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows_simd.cc"
#include "kernels/simd_targets.h"
// After simd_targets.h:
#include "kernels/decode_rows-inl.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

using DF = hn::CappedTag<float, 16>;
constexpr int kLanes = hn::MaxLanes(DF());
constexpr int kQueryVectors = kLanes == 16 ? 6 : 3;  // with kTokens keys they fill the registers
constexpr int kTokens = kLanes == 16 ? 4 : 3;
constexpr int kTile = 12;  // tokens whose logits are turned round together

// logits[t][v lanes ...] of kCount tokens for up to kQueryVectors vectors of queries. queries: [dim][stride].
template <int kVectors, int kCount>
HWY_INLINE void dots(const float* const* keys, const float* queries, std::size_t stride, int dim, float* logits,
                     std::size_t logit_stride) {
  const DF d;
  hn::Vec<DF> sums[kCount][kVectors];
  for (int t = 0; t < kCount; ++t)
    for (int v = 0; v < kVectors; ++v) sums[t][v] = hn::Zero(d);
  for (int c = 0; c < dim; ++c, queries += stride) {
    hn::Vec<DF> q[kVectors];
    for (int v = 0; v < kVectors; ++v) q[v] = hn::LoadU(d, queries + v * kLanes);
    for (int t = 0; t < kCount; ++t) {
      const auto key = hn::Set(d, keys[t][c]);
      for (int v = 0; v < kVectors; ++v) sums[t][v] = hn::MulAdd(key, q[v], sums[t][v]);
    }
  }
  for (int t = 0; t < kCount; ++t)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[t][v], d, logits + t * logit_stride + v * kLanes);
}

template <int kCount>
HWY_INLINE void dots_of_tokens(const float* const* keys, const float* queries, std::size_t stride, int dim,
                               float* logits) {
  std::size_t at = 0;
  for (; at + kQueryVectors * kLanes <= stride; at += kQueryVectors * kLanes)
    dots<kQueryVectors, kCount>(keys, queries + at, stride, dim, logits + at, stride);
  for (; at < stride; at += kLanes) dots<1, kCount>(keys, queries + at, stride, dim, logits + at, stride);
}

void AttendRows(const RowsTask& task) {
  const auto rows = static_cast<std::size_t>(task.n_queries);
  const std::size_t stride = (rows + kLanes - 1) / kLanes * kLanes;
  const auto dim = static_cast<std::size_t>(task.key_dim), n = static_cast<std::size_t>(task.n_tokens);
  std::vector<float> queries(dim * stride);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < dim; ++c) queries[c * stride + r] = task.queries[r * dim + c] * task.scale;
  std::vector<float> logits(kTile * stride);
  for (std::size_t begin = 0; begin < n; begin += kTile) {
    const std::size_t count = std::min<std::size_t>(kTile, n - begin);
    const float* keys[kTokens];
    for (std::size_t t = 0; t < count;) {
      const std::size_t some = std::min<std::size_t>(kTokens, count - t);
      for (std::size_t i = 0; i < some; ++i) keys[i] = task.keys + (begin + t + i) * dim;
      if (some == kTokens) {
        dots_of_tokens<kTokens>(keys, queries.data(), stride, task.key_dim, &logits[t * stride]);
        t += kTokens;
      } else {
        dots_of_tokens<1>(keys, queries.data(), stride, task.key_dim, &logits[t * stride]);
        ++t;
      }
    }
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t t = 0; t < count; ++t) task.out[r * n + begin + t] = logits[t * stride + r];
  }
  const DF d;
  for (std::size_t r = 0; r < rows; ++r) {
    float* row = task.out + r * n;
    const int seen = task.seen[r];
    const float sum = exp_row(row, seen, max_of(row, seen));
    const float share = sum > 0 ? 1 / sum : 0;
    std::size_t i = 0;
    for (; i + kLanes <= static_cast<std::size_t>(seen); i += kLanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, share)), d, row + i);
    for (; i < static_cast<std::size_t>(seen); ++i) row[i] *= share;
    std::fill(row + seen, row + n, 0.0f);
  }
}

using AttendRowsFunction = void (*)(const RowsTask& task);
AttendRowsFunction AttendRowsTable() { return &AttendRows; }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(AttendRowsTable);
void (*highway_rows())(const RowsTask& task) { return HWY_DYNAMIC_DISPATCH(AttendRowsTable)(); }

}  // namespace qevict
#endif
