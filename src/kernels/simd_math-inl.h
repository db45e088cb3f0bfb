// Vector arithmetic shared by the Highway kernels. Included once per target.
#if defined(QEVICT_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_SIMD_MATH_INL_H_
#undef QEVICT_KERNELS_SIMD_MATH_INL_H_
#else
#define QEVICT_KERNELS_SIMD_MATH_INL_H_
#endif

#include "base/half.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 2^x for x <= 0, relative error 2e-7; exactly 0 below -126, so -1e30 masks a key. Coefficients: Cephes exp2f.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_of(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, -126.0f);
  const V clamped = hn::Max(x, lowest);
  const V whole = hn::Round(clamped);
  const V f = hn::Sub(clamped, whole);
  V p = hn::Set(d, 1.535336188319500e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.339887440266574e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.618437357674640e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550332471162809e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402264791363012e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931472028550421e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, whole));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElseZero(hn::Ge(x, lowest), scaled);
}

inline constexpr float kLog2E = 1.44269504088896341f;

// f16 as f32.
template <class D>
HWY_INLINE hn::Vec<D> load_half(D d, const Half* from) {
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
}

// Calls f with the widest tag whose lanes divide n.
template <class F>
HWY_INLINE void with_lanes_dividing(int n, F f) {
  constexpr int kMax = hn::MaxLanes(hn::CappedTag<float, 16>());
  if constexpr (kMax >= 16) {
    if (n % 16 == 0) return f(hn::CappedTag<float, 16>());
  }
  if constexpr (kMax >= 8) {
    if (n % 8 == 0) return f(hn::CappedTag<float, 8>());
  }
  if constexpr (kMax >= 4) {
    if (n % 4 == 0) return f(hn::CappedTag<float, 4>());
  }
  return f(hn::CappedTag<float, 1>());
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();
#endif
