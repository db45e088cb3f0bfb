// Included before every source of ggml where AMX works (setup.sh). GCC 12's own two functions name only the first 8 of
// the 64 bytes they read and write, so stores to the rest of ggml's tile configuration are dropped as dead, and its AMX
// kernels die of SIGILL.
#pragma once

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

static inline __attribute__((always_inline)) void qevict_tile_loadconfig(const void* config) {
  __asm__ volatile("ldtilecfg\t%X0" : : "m"(*(const char(*)[64])config));
}
static inline __attribute__((always_inline)) void qevict_tile_storeconfig(void* config) {
  __asm__ volatile("sttilecfg\t%X0" : "=m"(*(char(*)[64])config));
}
#define _tile_loadconfig qevict_tile_loadconfig
#define _tile_storeconfig qevict_tile_storeconfig
#endif
