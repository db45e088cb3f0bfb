// What Highway kernels over integer codes share: 16-bit products, and sums of values whose codes have a scale, and
// perhaps a minimum, for each token and block of 32 channels. Included once per target; empty, QEVICT_CODED_VALUES 0,
// where ReorderWidenMulAccumulate puts its products elsewhere.
#if defined(QEVICT_KERNELS_CODED_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_CODED_VALUES_INL_H_
#undef QEVICT_KERNELS_CODED_VALUES_INL_H_
#else
#define QEVICT_KERNELS_CODED_VALUES_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/kernel_table.h"
#include "kernels/prefetch.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#undef QEVICT_CODED_VALUES
#define QEVICT_CODED_VALUES 1

constexpr int kTile = 32;         // tokens whose scales are unpacked together
constexpr int kBlock = 32;        // channels that share a scale
constexpr int kMaxBlocks = 32;    // of a row
constexpr int kTokensAhead = 64;  // pages end sooner than prefetchers of the hardware like
constexpr int kLanes = 8;
constexpr float kTop = 32767.0f;

using D8 = hn::Full128<std::int8_t>;
using D16 = hn::CappedTag<std::int16_t, 16>;
using D32 = hn::CappedTag<std::int32_t, 8>;
using DF = hn::CappedTag<float, 8>;
using V8 = hn::Vec<D8>;
using V16 = hn::Vec<D16>;
using V32 = hn::Vec<D32>;
using VF = hn::Vec<DF>;

HWY_INLINE V32 products(V16 a, V16 b) {
  V32 unused = hn::Zero(D32());
  return hn::ReorderWidenMulAccumulate(D32(), a, b, hn::Zero(D32()), unused);
}

// Sums of the lanes of four vectors, in the low 4 lanes and, of the other lanes, in the high ones.
HWY_INLINE V32 half_sums(V32 a, V32 b, V32 c, V32 e) {
  const D32 d;
  const hn::RepartitionToWide<D32> wide;
  const V32 ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const V32 ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto ab64 = hn::BitCast(wide, ab), ce64 = hn::BitCast(wide, ce);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab64, ce64)),
                 hn::BitCast(d, hn::InterleaveUpper(wide, ab64, ce64)));
}

// The sums of tokens 0 .. 3 and of 4 .. 7 as half_sums() leaves them, whole and in order.
HWY_INLINE V32 whole_sums(V32 first, V32 second) {
  const D32 d;
  return hn::Add(hn::ConcatLowerLower(d, second, first), hn::ConcatUpperUpper(d, second, first));
}

// A whole record, if there is such a window, while keys are read in order: its values then wait in the second cache.
HWY_INLINE void prefetch_record(const DecodeTask& task, int window, std::size_t bytes) {
  if (static_cast<std::size_t>(window) < task.head.codes.size())
    prefetch(task.head.codes[static_cast<std::size_t>(window)].record, bytes);
}

struct TileWeights {
  float unit;  // of their codes
  float from_minima;
};

// codes[0..kTile) = p * scale in 16 bits, 0 from `count` on. from_minima: sum of p * minimum, if there are any.
HWY_INLINE TileWeights weigh(const float* p, const float* scale, const float* minimum, int count, std::int16_t* codes) {
  const DF d;
  float padded_weights[kTile];
  if (count < kTile) {
    std::copy_n(p, count, padded_weights);
    std::fill(padded_weights + count, padded_weights + kTile, 0.0f);
    p = padded_weights;
  }
  VF products_of[kTile / kLanes], top = hn::Set(d, 1e-30f), from_minima = hn::Zero(d);
  for (int i = 0; i < kTile / kLanes; ++i) {
    const VF weight = hn::LoadU(d, p + i * kLanes);
    products_of[i] = hn::Mul(weight, hn::LoadU(d, scale + i * kLanes));
    top = hn::Max(top, hn::Abs(products_of[i]));
    if (minimum != nullptr) from_minima = hn::MulAdd(weight, hn::LoadU(d, minimum + i * kLanes), from_minima);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, top));
  const VF to_codes = hn::Set(d, kTop / largest);
  const hn::Rebind<std::int16_t, DF> d16;
  for (int i = 0; i < kTile / kLanes; ++i)
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(hn::Mul(products_of[i], to_codes))), d16, codes + i * kLanes);
  return {largest / kTop, minimum != nullptr ? hn::GetLane(hn::SumOfLanes(d, from_minima)) : 0.0f};
}

// acc[g] += sum over the tile's tokens of p[g][token] * value[token]. Rows, of a tile of kTile tokens:
//   blocks(), of 32 channels; codes(token, block, half): those of channels 16 half ...;
//   scales(block), minima(block): [kTile], minima null if there are none.
template <int kHeads, class Rows>
HWY_NOINLINE void add_values(const Rows& rows, int count, const float* p, std::size_t stride, float* acc, int dim) {
  const DF df;
  const D8 d8;
  for (int b = 0; b < rows.blocks(); ++b) {
    alignas(64) std::int16_t codes[kHeads][kTile];
    TileWeights weights[kHeads];
    for (int g = 0; g < kHeads; ++g)
      weights[g] = weigh(p + g * stride, rows.scales(b), rows.minima(b), count, codes[g]);
    for (int half = 0; half < 2; ++half) {
      V32 sums[kHeads][2];
      for (int g = 0; g < kHeads; ++g) sums[g][0] = sums[g][1] = hn::Zero(D32());
      for (int t = 0; t < count; t += 2) {
        const V8 even = rows.codes(t, b, half), odd = rows.codes(t + 1, b, half);
        const V16 low = hn::PromoteTo(D16(), hn::InterleaveLower(d8, even, odd));
        const V16 high = hn::PromoteTo(D16(), hn::InterleaveUpper(d8, even, odd));
        for (int g = 0; g < kHeads; ++g) {
          std::int32_t pair;
          std::memcpy(&pair, &codes[g][t], sizeof(pair));
          const V16 weight = hn::BitCast(D16(), hn::Set(D32(), pair));
          sums[g][0] = hn::Add(sums[g][0], products(low, weight));
          sums[g][1] = hn::Add(sums[g][1], products(high, weight));
        }
      }
      for (int g = 0; g < kHeads; ++g)
        for (int i = 0; i < 2; ++i) {
          float* out = acc + g * dim + b * kBlock + half * 16 + i * kLanes;
          const VF before = hn::Add(hn::LoadU(df, out), hn::Set(df, weights[g].from_minima));
          hn::StoreU(hn::MulAdd(hn::ConvertTo(df, sums[g][i]), hn::Set(df, weights[g].unit), before), df, out);
        }
    }
  }
}

// f16 numbers at rows[t] + first + b * step as f32 [blocks][kTile]. Collects first, converts later: a vector read right
// behind narrow writes waits for them.
inline void load_columns(const std::byte* const* rows, std::size_t first, std::size_t step, int n_blocks, float* out) {
  std::uint16_t halves[kMaxBlocks * kTile];
  for (int b = 0; b < n_blocks; ++b)
    for (int t = 0; t < kTile; ++t) std::memcpy(&halves[b * kTile + t], rows[t] + first + b * step, sizeof(Half));
  const auto* from = reinterpret_cast<const Half*>(halves);
  for (int i = 0; i < n_blocks * kTile; i += kLanes) hn::StoreU(load_half(DF(), from + i), DF(), out + i);
}

#else
#undef QEVICT_CODED_VALUES
#define QEVICT_CODED_VALUES 0
#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();
#endif
