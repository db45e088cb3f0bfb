// Keys behind codes in AVX-512 with VNNI, shared by the codecs' files. Include it inside their target options, after
// <immintrin.h>.
//
// One register holds 4 channels x 8 tokens of 16 bits (codec/record.h). A Source turns codes into integer keys, in
// units of 2^-13 of the largest key that a pair of channels may hold in the chunk; the pair turns by the token's place
// in the window; vpdpwssd multiplies by the query, which was turned back to the middle of the window.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/kernel_table.h"
#include "kernels/prefetch.h"
#include "kernels/rotation_table.h"
#include "kernels/rows_avx512.h"

namespace qevict {
namespace {

constexpr int kTokens = 8;  // of a window
constexpr int kChunk = 32;  // windows that share units
constexpr int kBlock = 8;   // windows that are prepared together
constexpr int kAhead = 12;  // windows from a record's prefetch to its use
constexpr int kMaxDim = 256;
constexpr int kMaxTokens = 2 * kRangeTokens;  // of one call
constexpr float kKeyUnit = 8192.0f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits

QEVICT_INLINE __m512 load_halves(const std::byte* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// Low 16 bits of the integers in even (as even lanes) and odd.
QEVICT_INLINE __m512i interleave16(__m512 even, __m512 odd) {
  return _mm512_mask_mov_epi16(_mm512_castps_si512(even), 0xAAAAAAAAu, _mm512_slli_epi32(_mm512_castps_si512(odd), 16));
}

QEVICT_INLINE __m512i broadcast64(const std::int16_t* from) {
  return _mm512_set1_epi64(*reinterpret_cast<const long long*>(from));
}

struct alignas(64) Query {
  float own[kMaxDim];        // slot order, scaled
  float partner[kMaxDim];    // signed
  float amplitude[kMaxDim];  // of the pair, times its magnitude
};

struct alignas(64) Chunk {
  float zero_units[kMaxDim];   // slot order: 2^13 / largest key of the pair
  float scale_units[kMaxDim];  // times 2^bits, since codes are fractions
  float largest[kMaxDim];
  std::int16_t query[kMaxHeads][2][kMaxDim];  // register order: turned to the block, and its partner
  float logit_unit[kMaxHeads];
  float query_units[kMaxHeads];
};

// Queries turned to the middle of one window, in register order.
template <int kHeads>
struct TurnedQuery {
  const std::int16_t* own[kHeads];
};

// One head's windows and how their keys turn.
struct Keys {
  const DecodeTask& task;
  const CodeRotation& rotation;
  int dim;
  bool neox;
  int n_windows;
  const CodeWindow* windows;

  explicit Keys(const DecodeTask& t)
      : task(t),
        rotation(code_rotation(*t.head.rope, t.shape.key_dim)),
        dim(t.shape.key_dim),
        neox(t.head.rope->neox),
        n_windows((t.range.end - t.range.begin) / kTokens),
        windows(t.head.codes.data() + t.range.begin / kTokens) {}
};

inline bool fits_registers(const DecodeTask& task) {
  return task.shape.key_dim <= kMaxDim &&
         CodeRotation::fits_windows(task.head, task.range, task.shape.key_dim, kMaxTokens);
}

// Part of a record, if there is such a window.
QEVICT_INLINE void prefetch_part(const Keys& keys, int window, std::size_t at, std::size_t bytes) {
  if (window < keys.n_windows) prefetch(keys.windows[window].record + at, bytes);
}

QEVICT_INLINE __m512 other_of_pair(const float* slots, int i, bool neox, int dim) {
  if (!neox) return _mm512_permute_ps(_mm512_load_ps(slots + i), 0x4E);
  return _mm512_load_ps(slots + (i < dim / 2 ? i + dim / 2 : i - dim / 2));
}

// Units of a chunk from the largest key of each channel (slot order); scale_factor: of scale_units over zero_units.
inline void set_units(const Keys& keys, const float* reach, float scale_factor, Chunk& chunk) {
  for (int i = 0; i < keys.dim; i += 16) {
    const __m512 a = _mm512_load_ps(reach + i), b = other_of_pair(reach, i, keys.neox, keys.dim);
    const __m512 largest =
        _mm512_max_ps(_mm512_sqrt_ps(_mm512_fmadd_ps(a, a, _mm512_mul_ps(b, b))), _mm512_set1_ps(1e-20f));
    _mm512_store_ps(chunk.largest + i, largest);
    const __m512 units = _mm512_div_ps(_mm512_set1_ps(kKeyUnit), largest);
    _mm512_store_ps(chunk.zero_units + i, units);
    _mm512_store_ps(chunk.scale_units + i, _mm512_mul_ps(units, _mm512_set1_ps(scale_factor)));
  }
}

// Units of the queries: the largest product of a query and a key of one pair is 2^13 * 2^13.
template <int kHeads>
void find_query_units(const Keys& keys, const Query* queries, Chunk& chunk) {
  // Sums of dim / 2 such products, in two lanes, stay inside an int32.
  const float amplitude = keys.dim <= 128 ? 8190.0f : 4095.0f;
  for (int g = 0; g < kHeads; ++g) {
    __m512 top = _mm512_set1_ps(1e-30f);
    for (int i = 0; i < keys.dim; i += 16)
      top = _mm512_max_ps(top,
                          _mm512_mul_ps(_mm512_load_ps(queries[g].amplitude + i), _mm512_load_ps(chunk.largest + i)));
    const float largest = _mm512_reduce_max_ps(top);
    chunk.query_units[g] = amplitude / largest;
    chunk.logit_unit[g] = largest / (amplitude * kKeyUnit);
  }
}

// Queries turned back to the block of positions, in integers.
template <int kHeads>
QEVICT_NOINLINE void turn_queries(const Keys& keys, const Query* queries, int block, Chunk& chunk) {
  const int dim = keys.dim;
  const float* row = keys.rotation.block_row(block);
  const __m512 magic = _mm512_set1_ps(kMagic);
  for (int i = 0; i < dim; i += 32) {
    __m512 cosine[2], sine[2];
    for (int half = 0; half < 2; ++half) {
      const __m512 largest = _mm512_load_ps(chunk.largest + i + 16 * half);
      cosine[half] = _mm512_mul_ps(_mm512_loadu_ps(row + i + 16 * half), largest);
      sine[half] = _mm512_mul_ps(_mm512_loadu_ps(row + dim + i + 16 * half), largest);
    }
    for (int g = 0; g < kHeads; ++g) {
      const __m512 units = _mm512_set1_ps(chunk.query_units[g]);
      __m512 own[2], other[2];
      for (int half = 0; half < 2; ++half) {
        const __m512 q = _mm512_mul_ps(_mm512_load_ps(queries[g].own + i + 16 * half), units);
        const __m512 p = _mm512_mul_ps(_mm512_load_ps(queries[g].partner + i + 16 * half), units);
        own[half] = _mm512_fmadd_ps(q, cosine[half], _mm512_fmadd_ps(p, sine[half], magic));
        other[half] = _mm512_fmadd_ps(p, cosine[half], _mm512_fnmadd_ps(q, sine[half], magic));
      }
      _mm512_store_si512(chunk.query[g][0] + i, interleave16(own[0], own[1]));
      _mm512_store_si512(chunk.query[g][1] + i, interleave16(other[0], other[1]));
    }
  }
}

// Queries turned on to the middles of n windows of one block of positions: [n][kHeads][dim].
template <int kHeads>
QEVICT_INLINE void turn_to_windows(const Keys& keys, const CodeWindow* windows, int n, const Chunk& chunk,
                                   std::int16_t* turned) {
  for (int i = 0; i < keys.dim; i += 32) {
    __m512i own[kHeads], other[kHeads];
    for (int g = 0; g < kHeads; ++g) {
      own[g] = _mm512_load_si512(chunk.query[g][0] + i);
      other[g] = _mm512_load_si512(chunk.query[g][1] + i);
    }
    std::int16_t* to = turned + i;
    for (int w = 0; w < n; ++w) {
      const std::int16_t* row = keys.rotation.offset_row(windows[w].position % kOffsets) + i;
      const __m512i cosine = _mm512_loadu_si512(row), sine = _mm512_loadu_si512(row + keys.dim);
      for (int g = 0; g < kHeads; ++g, to += keys.dim)
        _mm512_store_si512(to,
                           _mm512_add_epi16(_mm512_mulhrs_epi16(own[g], cosine), _mm512_mulhrs_epi16(other[g], sine)));
    }
  }
}

// Two windows at once, stage by stage: twice the independent work for the latencies to hide behind, and constants are
// loaded once. Turns a register pair by the tokens' places and adds its products with the queries. at: in register
// order.
template <int kHeads>
QEVICT_INLINE void add_products(__m512i (&x)[2], __m512i (&y)[2], CodeRotation::Turn turn,
                                const std::int16_t* constants, const TurnedQuery<kHeads> (&query)[2], int at_x,
                                int at_y, __m512i (&sums)[2][kHeads]) {
  if (turn != CodeRotation::Turn::none) {
    const __m512i sine = _mm512_loadu_si512(constants + 32);
    __m512i from_x[2], from_y[2];
    for (int i = 0; i < 2; ++i) from_y[i] = _mm512_mulhrs_epi16(y[i], sine);
    for (int i = 0; i < 2; ++i) from_x[i] = _mm512_mulhrs_epi16(x[i], sine);
    if (turn == CodeRotation::Turn::full) {
      const __m512i cosine = _mm512_loadu_si512(constants);
      for (int i = 0; i < 2; ++i) x[i] = _mm512_mulhrs_epi16(x[i], cosine);
      for (int i = 0; i < 2; ++i) y[i] = _mm512_mulhrs_epi16(y[i], cosine);
    }
    for (int i = 0; i < 2; ++i) x[i] = _mm512_sub_epi16(x[i], from_y[i]);
    for (int i = 0; i < 2; ++i) y[i] = _mm512_add_epi16(y[i], from_x[i]);
  }
  for (int i = 0; i < 2; ++i)
    for (int g = 0; g < kHeads; ++g)
      sums[i][g] = _mm512_dpwssd_epi32(sums[i][g], x[i], broadcast64(query[i].own[g] + at_x));
  for (int i = 0; i < 2; ++i)
    for (int g = 0; g < kHeads; ++g)
      sums[i][g] = _mm512_dpwssd_epi32(sums[i][g], y[i], broadcast64(query[i].own[g] + at_y));
}

template <int... kIndex, class F>
QEVICT_INLINE void unrolled(std::integer_sequence<int, kIndex...>, F f) {
  (f(std::integral_constant<int, kIndex>()), ...);
}

// Logits of all windows: logits[g * stride + token]. A Source has
//   void prefetch_scales(int window) const                  what find_units will read of it
//   void prefetch_codes(int window) const                   the rest
//   void find_units(int first, int last, Chunk&)            of the windows of a chunk
//   void prepare(const CodeWindow*, int n, const Chunk&)    windows 0 .. n-1 of a block
//   void sums<kNeox, kHeads>(const CodeWindow*, const int (&window)[2], const TurnedQuery (&)[2],
//                            __m512i (&sums)[2][kHeads]) const    two windows of the block
//
// Windows are prepared a block at a time: work of one kind in a row keeps the core busy, where window after window each
// would wait for its own scales and turned query.
template <bool kNeox, int kHeads, class Source>
QEVICT_NOINLINE void key_logits(const Keys& keys, Source& source, const Query* queries, float* logits,
                                std::size_t stride) {
  Chunk chunk;
  alignas(64) std::int16_t turned[kBlock * kHeads * kMaxDim];
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  for (int first = 0; first < keys.n_windows; first += kChunk) {
    const int last = std::min(first + kChunk, keys.n_windows);
    source.find_units(first, last, chunk);
    find_query_units<kHeads>(keys, queries, chunk);
    int turned_to = -1;
    for (int begin = first; begin < last; begin += kBlock) {
      const CodeWindow* block = keys.windows + begin;
      const int n = std::min(kBlock, last - begin);
      for (int i = 0, end; i < n; i = end) {
        const int positions = block[i].position / kOffsets;
        for (end = i + 1; end < n && block[end].position / kOffsets == positions; ++end) {
        }
        if (positions != turned_to) turn_queries<kHeads>(keys, queries, turned_to = positions, chunk);
        turn_to_windows<kHeads>(keys, block + i, end - i, chunk, turned + i * kHeads * keys.dim);
      }
      source.prepare(block, n, chunk);
      // Between the stores above and the loads below, or GCC rebuilds the broadcasts with register shuffles.
      asm volatile("" ::: "memory");
      for (int w = 0; w < n; w += 2) {
        for (int i = begin + w; i < begin + w + 2; ++i) {
          source.prefetch_codes(i + kAhead);
          source.prefetch_scales(i + kChunk);
        }
        __m512i sums[2][kHeads];
        TurnedQuery<kHeads> query[2];
        const int window[2] = {w, std::min(w + 1, n - 1)};
        for (int i = 0; i < 2; ++i) {
          for (int g = 0; g < kHeads; ++g) {
            query[i].own[g] = turned + (window[i] * kHeads + g) * keys.dim;
            sums[i][g] = _mm512_setzero_si512();
          }
        }
        source.template sums<kNeox, kHeads>(block, window, query, sums);
        const __mmask16 stored = w + 1 < n ? 0xffff : 0x00ff;
        for (int g = 0; g < kHeads; ++g) {
          const __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(sums[0][g], even, sums[1][g]),
                                               _mm512_permutex2var_epi32(sums[0][g], odd, sums[1][g]));
          _mm512_mask_storeu_ps(logits + g * stride + kTokens * (begin + w), stored,
                                _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(chunk.logit_unit[g])));
        }
      }
    }
  }
}

inline void load_query(const Keys& keys, int head, Query& query) {
  const float* q = keys.task.query + static_cast<std::ptrdiff_t>(head) * keys.dim;
  const CodeRotation& rotation = keys.rotation;
  const __m512 scale = _mm512_set1_ps(keys.task.scale);
  for (int i = 0; i < keys.dim; i += 16) {
    const auto gather = [&](const std::int32_t* from) {
      return _mm512_mul_ps(_mm512_i32gather_ps(_mm512_loadu_si512(from + i), q, 4), scale);
    };
    const __m512 own = gather(rotation.channels());
    const __m512 other = _mm512_mul_ps(gather(rotation.partners()), _mm512_loadu_ps(rotation.signs() + i));
    _mm512_store_ps(query.own + i, own);
    _mm512_store_ps(query.partner + i, other);
    _mm512_store_ps(query.amplitude + i,
                    _mm512_mul_ps(_mm512_sqrt_ps(_mm512_fmadd_ps(own, own, _mm512_mul_ps(other, other))),
                                  _mm512_loadu_ps(rotation.magnitudes() + i)));
  }
}

// Logits of up to 4 query heads into the task's weights, and their maxima; then values(integral constant heads, first
// head, first row of logits).
template <class Source, class Values>
void attend_codes(const Keys& keys, Source& source, Values values) {
  const DecodeTask& task = keys.task;
  for (int w = 0; w < kChunk; ++w) source.prefetch_scales(w);
  for (int w = 0; w < kAhead; ++w) source.prefetch_codes(w);
  for_head_groups(task.shape.group, [&](auto count, int first) {
    constexpr int kHeads = decltype(count)::value;
    Query queries[kHeads];
    for (int g = 0; g < kHeads; ++g) load_query(keys, first + g, queries[g]);
    float* logits = task.weights + first * task.weight_stride;
    if (keys.neox) {
      key_logits<true, kHeads>(keys, source, queries, logits, task.weight_stride);
    } else {
      key_logits<false, kHeads>(keys, source, queries, logits, task.weight_stride);
    }
    for (int g = 0; g < kHeads; ++g)
      task.out.max[first + g] = max_of_row(logits + g * task.weight_stride, kTokens * keys.n_windows);
    values(count, first, logits);
  });
}

}  // namespace
}  // namespace qevict
