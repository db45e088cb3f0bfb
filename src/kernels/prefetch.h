// Brings cache memory nearer before it is read.
#pragma once

#include <cstddef>

namespace qevict {

// To the second cache, not the first: a record is wanted some hundred steps later, and on Zen 4 requests for the first
// cache stand in the way of the loads between (k4v4: 7.4 -> 5.9 ns a token, int4: 10.6 -> 8.2). Inlined: to GCC a
// function that only prefetches does nothing, and its calls go.
__attribute__((always_inline)) inline void prefetch(const void* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(static_cast<const char*>(from) + at, 0, 2);
}

}  // namespace qevict
