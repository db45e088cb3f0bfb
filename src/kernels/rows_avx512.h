// What the files for AVX-512 with VNNI share. It opens their target options (those cpu_has_avx512_vnni() asks for):
// include it last but for headers that are written for these options, and close the file with #pragma GCC pop_options.
#pragma once

#include <limits>
#include <type_traits>

// GCC 12's own intrinsics start from undefined registers and warn about them.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c,avx2,bmi2")
#include <immintrin.h>

#include "kernels/exp2_avx512.h"

#define QEVICT_INLINE __attribute__((always_inline)) inline
#define QEVICT_NOINLINE __attribute__((noinline))  // one copy, whoever calls it

namespace qevict {
namespace {

constexpr int kMaxHeads = 4;  // at once

// Calls f(integral constant heads, first head) for groups of up to kMaxHeads query heads.
template <class F>
void for_head_groups(int group, F f) {
  int g = 0;
  for (; group - g >= 4; g += 4) f(std::integral_constant<int, 4>(), g);
  if (group - g == 3) f(std::integral_constant<int, 3>(), g);
  if (group - g == 2) f(std::integral_constant<int, 2>(), g);
  if (group - g == 1) f(std::integral_constant<int, 1>(), g);
}

// The first n of 16 lanes; all from 16 on, none up to 0.
QEVICT_INLINE __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}

inline float max_of_row(const float* row, int n) {
  __m512 top = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int i = 0; i < n; i += 16) top = _mm512_max_ps(top, _mm512_mask_loadu_ps(top, first_lanes(n - i), row + i));
  return _mm512_reduce_max_ps(top);
}

}  // namespace
}  // namespace qevict
