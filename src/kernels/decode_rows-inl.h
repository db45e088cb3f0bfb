// What decode kernels share: horizontal sums, softmax of rows of logits, scratch. Included once per target.
#if defined(QEVICT_KERNELS_DECODE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_DECODE_ROWS_INL_H_
#undef QEVICT_KERNELS_DECODE_ROWS_INL_H_
#else
#define QEVICT_KERNELS_DECODE_ROWS_INL_H_
#endif

#include <algorithm>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "hwy/highway.h"
#include "kernels/kernel_table.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// [pair sums of a | pair sums of b]: applied log2(lanes) times to as many vectors it leaves their sums in order.
template <class D, class V>
HWY_INLINE V add_pairs([[maybe_unused]] D d, V a, V b) {
#if HWY_TARGET == HWY_SCALAR
  (void)b;
  return a;  // one lane: never called
#else
  return hn::Add(hn::ConcatEven(d, b, a), hn::ConcatOdd(d, b, a));
#endif
}

// Sums of kLanes vectors, in order.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sums_in_order(D d, const V (&quads)[(hn::MaxLanes(D()) + 3) / 4]) {
  constexpr int kLanes = hn::MaxLanes(D());
  if constexpr (kLanes == 8) return add_pairs(d, quads[0], quads[1]);
  if constexpr (kLanes == 16) return add_pairs(d, add_pairs(d, quads[0], quads[1]), add_pairs(d, quads[2], quads[3]));
  return quads[0];
}

// Calls f(integral constant, first head) for groups of up to 4 query heads.
template <class F>
HWY_INLINE void for_head_groups(int group, F f) {
  int g = 0;
  for (; g + 4 <= group; g += 4) f(std::integral_constant<int, 4>(), g);
  if (group - g == 3) f(std::integral_constant<int, 3>(), g);
  if (group - g == 2) f(std::integral_constant<int, 2>(), g);
  if (group - g == 1) f(std::integral_constant<int, 1>(), g);
}

inline float max_of(const float* row, int n) {
  const hn::CappedTag<float, 16> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  float result = -std::numeric_limits<float>::infinity();
  int i = 0;
  if (n >= lanes) {
    auto top = hn::LoadU(d, row);
    for (i = lanes; i + lanes <= n; i += lanes) top = hn::Max(top, hn::LoadU(d, row + i));
    result = hn::GetLane(hn::MaxOfLanes(d, top));
  }
  for (; i < n; ++i) result = std::max(result, row[i]);
  return result;
}

// row[i] = exp(row[i] - max), and their sum. The order of the sum does not depend on where rows begin in memory.
inline float exp_row(float* row, int n, float max) {
  const hn::CappedTag<float, 16> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto top = hn::Set(d, max);
  const auto log2e = hn::Set(d, kLog2E);
  auto sum = hn::Zero(d);
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto e = exp2_of(d, hn::Mul(hn::Sub(hn::LoadU(d, row + i), top), log2e));
    hn::StoreU(e, d, row + i);
    sum = hn::Add(sum, e);
  }
  if (i < n) {
    float tail[16];
    std::fill(tail, tail + 16, -std::numeric_limits<float>::infinity());
    std::copy(row + i, row + n, tail);
    const auto e = exp2_of(d, hn::Mul(hn::Sub(hn::LoadU(d, tail), top), log2e));
    hn::StoreU(e, d, tail);
    std::copy(tail, tail + (n - i), row + i);
    sum = hn::Add(sum, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

inline std::span<float> thread_scratch(std::size_t floats) {
  thread_local std::vector<float> scratch;
  if (scratch.size() < floats) scratch.resize(floats);
  return scratch;
}

inline void scale_query(const DecodeTask& task, float* query) {
  const std::size_t n = static_cast<std::size_t>(task.shape.group) * task.shape.key_dim;
  for (std::size_t i = 0; i < n; ++i) query[i] = task.query[i] * task.scale;
}

inline void clear(const DecodeTask& task) {
  const PartialView& out = task.out;
  std::fill_n(out.max, task.shape.group, -std::numeric_limits<float>::infinity());
  std::fill_n(out.denom, task.shape.group, 0.0f);
  std::fill_n(out.acc, std::size_t{1} * task.shape.group * task.shape.value_dim, 0.0f);
}

inline void softmax_rows(const DecodeTask& task, int n) {
  for (int g = 0; g < task.shape.group; ++g) {
    float* row = task.weights + g * task.weight_stride;
    task.out.max[g] = max_of(row, n);
    task.out.denom[g] = exp_row(row, n, task.out.max[g]);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();
#endif
