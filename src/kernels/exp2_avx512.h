// 2^x for the AVX-512 files. Include it after <immintrin.h> and inside their target options.
#pragma once

namespace qevict {
namespace {

constexpr float kLog2E = 1.44269504088896341f;

// x <= 0, relative error 1e-7 (minimax of degree 5 on [0, 1)); 2^-126 below that, since denormal numbers are slow.
__attribute__((always_inline)) inline __m512 exp2_of(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-126.0f));
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x), without an exception for what is lost
  __m512 p = _mm512_set1_ps(1.877576700e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(8.989340024e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.582631812e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.401536170e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931530732e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.999999251e-1f));
  return _mm512_scalef_ps(p, x);  // times 2^floor(x)
}

}  // namespace
}  // namespace qevict
