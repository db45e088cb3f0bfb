// Highway's targets for every kernel file, before any of its headers.
#pragma once

#ifdef HWY_DISABLED_TARGETS
#error "include kernels/simd_targets.h before Highway's own headers"
#endif
// Between the baseline and AVX2 nothing is worth its code; SVE's vectors cannot live in arrays.
#define HWY_DISABLED_TARGETS \
  ((1LL << 11) | (1LL << 12) | (1LL << 24) | (1LL << 25) | (1LL << 26) | (1LL << 27))  // SSE4, SSSE3, SVE2_128 .. SVE
