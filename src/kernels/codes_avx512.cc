// INT2 and INT4 keys and values, read as codes (codec/paper_int.h), 8 tokens a window.
//
// Keys: one register holds 4 channels x 8 tokens of 16 bits. A code, as a fraction, becomes an integer key, code * scale + zero in units
// of 2^-13 of the largest key that the pair of channels may hold in these 16 windows; the pair turns by the token's place
// in the window; vpdpwssd multiplies by the query, which was turned back to the middle of the window.
// Values: codes stay bytes; the weights (probability times the token's scale) are two planes of 7 bits for vpdpbusd.
#include "kernels/codes_avx512.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/paper_int.h"
#include "kernels/rotation_table.h"

#if defined(__x86_64__) && defined(__GNUC__)

// GCC 12's own intrinsics start from undefined registers and warn about them.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c,avx2,bmi2")
#include <immintrin.h>

namespace qevict {
namespace {

constexpr int kTokens = 8;        // of a window
constexpr int kChunk = 16;        // windows that share units
constexpr int kMaxDim = 256;
constexpr int kMaxHeads = 4;      // at once
constexpr float kKeyUnit = 8192.0f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits

#define QEVICT_INLINE __attribute__((always_inline)) inline

QEVICT_INLINE __m512 load_halves(const std::byte* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// Low 16 bits of the integers in even (as even lanes) and odd.
QEVICT_INLINE __m512i interleave16(__m512 even, __m512 odd) {
  return _mm512_mask_mov_epi16(_mm512_castps_si512(even), 0xAAAAAAAAu,
                               _mm512_slli_epi32(_mm512_castps_si512(odd), 16));
}

QEVICT_INLINE __m512i broadcast64(const std::int16_t* from) {
  return _mm512_set1_epi64(*reinterpret_cast<const long long*>(from));
}

QEVICT_INLINE __m512 exp2_of(__m512 x) {
  const __m512 lowest = _mm512_set1_ps(-126.0f);
  const __mmask16 keep = _mm512_cmp_ps_mask(x, lowest, _CMP_GE_OQ);
  x = _mm512_max_ps(x, lowest);
  const __m512 whole = _mm512_roundscale_ps(x, 8);
  const __m512 f = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(1.535336188319500e-4f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.339887440266574e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.618437357674640e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550332471162809e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402264791363012e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931472028550421e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(keep, p, whole);
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
};

struct alignas(64) Window {
  std::int16_t scale[kMaxDim];  // register order
  std::int16_t zero[kMaxDim];
  std::int16_t query[kMaxHeads][kMaxDim];
};

struct Keys {
  const DecodeTask& task;
  const PaperIntLayout& layout;
  const CodeRotation& rotation;
  int dim;
  bool neox;
  int n_windows;
  const CodeWindow* windows;
};

QEVICT_INLINE __m512 other_of_pair(const float* slots, int i, bool neox, int dim) {
  if (!neox) return _mm512_permute_ps(_mm512_load_ps(slots + i), 0x4E);
  return _mm512_load_ps(slots + (i < dim / 2 ? i + dim / 2 : i - dim / 2));
}

// Units from the largest zero and scale of the chunk's windows; brings the next chunk's records nearer meanwhile.
void find_units(const Keys& keys, int first, int last, int steps, Chunk& chunk) {
  const int dim = keys.dim;
  __m512i scales[kMaxDim / 32], zeros[kMaxDim / 32];
  const int n = dim / 32;
  for (int i = 0; i < n; ++i) scales[i] = zeros[i] = _mm512_setzero_si512();
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  const std::size_t bytes = keys.layout.bytes();
  for (int w = first; w < last; ++w) {
    const int ahead = w + kChunk;
    if (ahead < keys.n_windows) {
      const char* record = reinterpret_cast<const char*>(keys.windows[ahead].record);
      for (std::size_t b = 0; b < bytes; b += 64) _mm_prefetch(record + b, _MM_HINT_T0);
    }
    const std::byte* record = keys.windows[w].record;
    for (int i = 0; i < n; ++i) {
      const auto load = [&](std::size_t at) { return _mm512_loadu_si512(record + at + 64 * static_cast<std::size_t>(i)); };
      scales[i] = _mm512_max_epu16(scales[i], load(keys.layout.key_scales()));
      zeros[i] = _mm512_max_epu16(zeros[i], _mm512_and_si512(load(keys.layout.key_zeros()), magnitude));
    }
  }
  alignas(64) float reach[kMaxDim];
  for (int i = 0; i < n; ++i) {
    for (int half = 0; half < 2; ++half) {
      const auto widen = [&](__m512i x) {
        return _mm512_cvtph_ps(half == 0 ? _mm512_castsi512_si256(x) : _mm512_extracti64x4_epi64(x, 1));
      };
      _mm512_store_ps(reach + 32 * i + 16 * half, _mm512_fmadd_ps(widen(scales[i]), _mm512_set1_ps(static_cast<float>(steps)),
                                                                   widen(zeros[i])));
    }
  }
  for (int i = 0; i < dim; i += 16) {
    const __m512 a = _mm512_load_ps(reach + i), b = other_of_pair(reach, i, keys.neox, dim);
    const __m512 largest =
        _mm512_max_ps(_mm512_sqrt_ps(_mm512_fmadd_ps(a, a, _mm512_mul_ps(b, b))), _mm512_set1_ps(1e-20f));
    _mm512_store_ps(chunk.largest + i, largest);
    const __m512 units = _mm512_div_ps(_mm512_set1_ps(kKeyUnit), largest);
    _mm512_store_ps(chunk.zero_units + i, units);
    _mm512_store_ps(chunk.scale_units + i, _mm512_mul_ps(units, _mm512_set1_ps(static_cast<float>(steps + 1))));
  }
}

// Queries turned back to the block of positions, in integers.
template <int kHeads>
void turn_queries(const Keys& keys, const Query* queries, int block, Chunk& chunk) {
  const int dim = keys.dim;
  // Sums of dim / 2 products of 2^13 * amplitude, in two lanes, stay inside an int32.
  const float amplitude = dim <= 128 ? 8190.0f : 4095.0f;
  const float* row = keys.rotation.block_row(block);
  for (int g = 0; g < kHeads; ++g) {
    const Query& q = queries[g];
    __m512 top = _mm512_set1_ps(1e-30f);
    for (int i = 0; i < dim; i += 16)
      top = _mm512_max_ps(top, _mm512_mul_ps(_mm512_load_ps(q.amplitude + i), _mm512_load_ps(chunk.largest + i)));
    const float largest = _mm512_reduce_max_ps(top);
    const __m512 to_units = _mm512_set1_ps(amplitude / largest);
    chunk.logit_unit[g] = largest / (amplitude * kKeyUnit);
    const auto turned = [&](int i, bool partner) {
      const __m512 cosine = _mm512_loadu_ps(row + i), sine = _mm512_loadu_ps(row + dim + i);
      const __m512 own = _mm512_load_ps(q.own + i), other = _mm512_load_ps(q.partner + i);
      // q cos + q' sin; its partner, turned likewise, is q' cos - q sin (slots of a pair share angles).
      const __m512 x = partner ? _mm512_fmsub_ps(other, cosine, _mm512_mul_ps(own, sine))
                               : _mm512_fmadd_ps(own, cosine, _mm512_mul_ps(other, sine));
      return _mm512_fmadd_ps(x, _mm512_mul_ps(to_units, _mm512_load_ps(chunk.largest + i)), _mm512_set1_ps(kMagic));
    };
    for (int i = 0; i < dim; i += 32) {
      for (int partner = 0; partner < 2; ++partner)
        _mm512_store_si512(chunk.query[g][partner] + i, interleave16(turned(i, partner != 0), turned(i + 16, partner != 0)));
    }
  }
}

template <int kHeads>
QEVICT_INLINE void prepare_window(const Keys& keys, const CodeWindow& code, const Chunk& chunk, Window& window) {
  const __m512 magic = _mm512_set1_ps(kMagic);
  const std::byte* scales = code.record + keys.layout.key_scales();
  const std::byte* zeros = code.record + keys.layout.key_zeros();
  const std::int16_t* row = keys.rotation.offset_row(code.position % kOffsets);
  for (int i = 0; i < keys.dim; i += 32) {
    const auto integers = [&](const std::byte* from, const float* units) {
      return interleave16(_mm512_fmadd_ps(load_halves(from + 2 * i), _mm512_load_ps(units + i), magic),
                          _mm512_fmadd_ps(load_halves(from + 2 * i + 32), _mm512_load_ps(units + i + 16), magic));
    };
    _mm512_store_si512(window.scale + i, integers(scales, chunk.scale_units));
    _mm512_store_si512(window.zero + i, integers(zeros, chunk.zero_units));
    const __m512i cosine = _mm512_loadu_si512(row + i), sine = _mm512_loadu_si512(row + keys.dim + i);
    for (int g = 0; g < kHeads; ++g) {
      const __m512i own = _mm512_load_si512(chunk.query[g][0] + i), other = _mm512_load_si512(chunk.query[g][1] + i);
      _mm512_store_si512(window.query[g] + i,
                         _mm512_add_epi16(_mm512_mulhrs_epi16(own, cosine), _mm512_mulhrs_epi16(other, sine)));
    }
  }
  asm volatile("" ::: "memory");  // or GCC rebuilds the broadcasts below with register shuffles
}

// One register pair: rows at `a` and `b`, codes at bits kShiftA, kShiftB.
template <int kBits, int kShiftA, int kShiftB, int kHeads>
QEVICT_INLINE void add_pair(const std::byte* a, const std::byte* b, const Window& window, int at_a, int at_b,
                            CodeRotation::Turn turn, const std::int16_t* constants, __m512i (&sums)[kHeads]) {
  const __m512i mask = _mm512_set1_epi16(((1 << kBits) - 1) << (15 - kBits));
  const auto key = [&](__m512i row, auto shift, int at) {
    constexpr int kUp = 15 - kBits - decltype(shift)::value;  // to the highest bits of a positive fraction
    row = kUp < 0 ? _mm512_srli_epi16(row, -kUp) : _mm512_slli_epi16(row, kUp);
    const __m512i code = _mm512_and_si512(row, mask);
    return _mm512_add_epi16(_mm512_mulhrs_epi16(code, broadcast64(window.scale + at)), broadcast64(window.zero + at));
  };
  __m512i x = key(_mm512_loadu_si512(a), std::integral_constant<int, kShiftA>(), at_a);
  __m512i y = key(_mm512_loadu_si512(b), std::integral_constant<int, kShiftB>(), at_b);
  if (turn != CodeRotation::Turn::none) {
    const __m512i sine = _mm512_loadu_si512(constants + 32);
    const __m512i from_y = _mm512_mulhrs_epi16(y, sine), from_x = _mm512_mulhrs_epi16(x, sine);
    if (turn == CodeRotation::Turn::full) {
      const __m512i cosine = _mm512_loadu_si512(constants);
      x = _mm512_mulhrs_epi16(x, cosine);
      y = _mm512_mulhrs_epi16(y, cosine);
    }
    x = _mm512_sub_epi16(x, from_y);
    y = _mm512_add_epi16(y, from_x);
  }
  for (int g = 0; g < kHeads; ++g) {
    sums[g] = _mm512_dpwssd_epi32(sums[g], x, broadcast64(window.query[g] + at_a));
    sums[g] = _mm512_dpwssd_epi32(sums[g], y, broadcast64(window.query[g] + at_b));
  }
}

template <int... kIndex, class F>
QEVICT_INLINE void unrolled(std::integer_sequence<int, kIndex...>, F f) {
  (f(std::integral_constant<int, kIndex>()), ...);
}

// Sums of one window: int32 lanes (token, half of the places).
template <int kBits, bool kNeox, int kHeads>
QEVICT_INLINE void window_sums(const Keys& keys, const CodeWindow& code, const Window& window, const std::int16_t* constants,
                               __m512i (&sums)[kHeads]) {
  constexpr int kPerRow = 16 / kBits;  // registers
  const CodeRotation::Turn* turns = keys.rotation.turns();
  const std::byte* row = code.record;
  for (int g = 0; g < kHeads; ++g) sums[g] = _mm512_setzero_si512();
  if constexpr (kNeox) {
    const int behind = keys.dim / 2;  // in register order
    const std::byte* row_b = row + behind / 4 / kPerRow * 64;
    for (int pair = 0; pair < keys.dim / 8; pair += kPerRow, row += 64, row_b += 64) {
      unrolled(std::make_integer_sequence<int, kPerRow>(), [&](auto i) {
        constexpr int kI = decltype(i)::value;
        const int p = pair + kI;
        add_pair<kBits, kI * kBits, kI * kBits, kHeads>(row, row_b, window, 4 * p, 4 * p + behind, turns[p],
                                                        constants + 64 * p, sums);
      });
    }
  } else {
    for (int pair = 0; pair < keys.dim / 8; pair += kPerRow / 2, row += 64) {
      unrolled(std::make_integer_sequence<int, kPerRow / 2>(), [&](auto i) {
        constexpr int kI = decltype(i)::value;
        const int p = pair + kI;
        add_pair<kBits, 2 * kI * kBits, (2 * kI + 1) * kBits, kHeads>(row, row, window, 8 * p, 8 * p + 4, turns[p],
                                                                      constants + 64 * p, sums);
      });
    }
  }
}

template <int kBits, bool kNeox, int kHeads>
void key_logits(const Keys& keys, const Query* queries, float* logits, std::size_t stride) {
  Chunk chunk;
  Window window;
  const std::int16_t* constants = keys.rotation.in_window(0);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  for (int first = 0; first < keys.n_windows; first += kChunk) {
    const int last = std::min(first + kChunk, keys.n_windows);
    find_units(keys, first, last, (1 << kBits) - 1, chunk);
    int block = -1;
    for (int w = first; w < last; w += 2) {
      __m512i sums[2][kHeads];
      for (int i = 0; i < 2; ++i) {
        const CodeWindow& code = keys.windows[std::min(w + i, last - 1)];
        if (code.position / kOffsets != block) {
          block = code.position / kOffsets;
          turn_queries<kHeads>(keys, queries, block, chunk);
        }
        prepare_window<kHeads>(keys, code, chunk, window);
        window_sums<kBits, kNeox, kHeads>(keys, code, window, constants, sums[i]);
      }
      const __mmask16 stored = w + 1 < last ? 0xffff : 0x00ff;
      for (int g = 0; g < kHeads; ++g) {
        const __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(sums[0][g], even, sums[1][g]),
                                             _mm512_permutex2var_epi32(sums[0][g], odd, sums[1][g]));
        _mm512_mask_storeu_ps(logits + g * stride + kTokens * w, stored,
                              _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(chunk.logit_unit[g])));
      }
    }
  }
}

// Plain exponentials in place and, for the values, weight * scale in two planes of 7 bits. Returns the sum of
// weight * zero, in out.acc units.
float exponentials(const Keys& keys, float* row, int n, float max, float largest_scale, std::uint8_t* high, std::uint8_t* low,
                   float* denom) {
  const __m512 top = _mm512_set1_ps(max), log2e = _mm512_set1_ps(1.44269504088896341f);
  const __m512 to_units = _mm512_set1_ps(16383.0f / largest_scale);
  __m512 sum = _mm512_setzero_ps(), zeros = _mm512_setzero_ps();
  for (int i = 0; i < n; i += 16) {
    const bool pair = i + 8 < n;
    const __mmask16 mask = pair ? 0xffff : 0x00ff;
    const std::byte* a = keys.windows[i / 8].record;
    const std::byte* b = keys.windows[pair ? i / 8 + 1 : i / 8].record;
    const auto halves = [&](std::size_t at) {
      return _mm512_cvtph_ps(_mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + at)),
                                              _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + at))));
    };
    const __m512 logit = _mm512_maskz_loadu_ps(mask, row + i);
    const __m512 p = _mm512_maskz_mov_ps(mask, exp2_of(_mm512_mul_ps(_mm512_sub_ps(logit, top), log2e)));
    _mm512_mask_storeu_ps(row + i, mask, p);
    sum = _mm512_add_ps(sum, p);
    zeros = _mm512_fmadd_ps(p, halves(keys.layout.value_zeros()), zeros);
    const __m512 weight = _mm512_mul_ps(p, halves(keys.layout.value_scales()));
    const __m512i units = _mm512_cvtps_epi32(_mm512_mul_ps(weight, to_units));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(_mm512_srli_epi32(units, 7)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i),
                     _mm512_cvtepi32_epi8(_mm512_and_si512(units, _mm512_set1_epi32(127))));
  }
  *denom = _mm512_reduce_add_ps(sum);
  return _mm512_reduce_add_ps(zeros);
}

// acc[g][first_group * 16 ..] = sum over tokens of weight * code, for kGroups groups of 16 channels.
template <int kBits, int kHeads, int kGroups>
void value_sums(const Keys& keys, const std::uint8_t* const* high, const std::uint8_t* const* low, int first_group,
                const float* unit, const float* zero_sum, float* const* acc) {
  constexpr int kPerRow = 8 / kBits;  // codes of a byte
  __m512i sums[kHeads][kGroups][2];
  for (auto& head : sums)
    for (auto& group : head) group[0] = group[1] = _mm512_setzero_si512();
  const std::size_t at = keys.layout.value_codes() + static_cast<std::size_t>(first_group) * 2 / kPerRow * 64;
  const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
  for (int w = 0; w < keys.n_windows; ++w) {
    const std::byte* row = keys.windows[w].record + at;
    const auto weights = [&](const std::uint8_t* plane, int quad) {
      return _mm512_set1_epi32(*reinterpret_cast<const int*>(plane + kTokens * w + 4 * quad));
    };
    unrolled(std::make_integer_sequence<int, 2 * kGroups>(), [&](auto i) {
      constexpr int kI = decltype(i)::value, kGroup = kI / 2, kQuad = kI % 2, kShift = kI % kPerRow * kBits;
      __m512i codes = _mm512_loadu_si512(row + kI / kPerRow * 64);
      if constexpr (kShift != 0) codes = _mm512_srli_epi16(codes, kShift);
      codes = _mm512_and_si512(codes, mask);
      for (int g = 0; g < kHeads; ++g) {
        sums[g][kGroup][0] = _mm512_dpbusd_epi32(sums[g][kGroup][0], codes, weights(high[g], kQuad));
        sums[g][kGroup][1] = _mm512_dpbusd_epi32(sums[g][kGroup][1], codes, weights(low[g], kQuad));
      }
    });
  }
  for (int g = 0; g < kHeads; ++g) {
    for (int c = 0; c < kGroups; ++c) {
      const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(sums[g][c][0], 7), sums[g][c][1]);
      _mm512_storeu_ps(acc[g] + 16 * (first_group + c), _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), _mm512_set1_ps(unit[g]),
                                                                       _mm512_set1_ps(zero_sum[g])));
    }
  }
}

float largest_value_scale(const Keys& keys) {
  __m128i top = _mm_setzero_si128();
  for (int w = 0; w < keys.n_windows; ++w)
    top = _mm_max_epu16(top, _mm_loadu_si128(reinterpret_cast<const __m128i*>(keys.windows[w].record +
                                                                             keys.layout.value_scales())));
  const float largest = _mm256_cvtss_f32(_mm256_cvtph_ps(top));
  return std::max({largest, _mm512_reduce_max_ps(_mm512_zextps256_ps512(_mm256_cvtph_ps(top))), 1e-20f});
}

constexpr int kMaxTokens = 2 * kRangeTokens;  // of one pass over values

template <int kBits, int kHeads>
void heads_pass(const Keys& keys, const Query* queries, int first_head) {
  const DecodeTask& task = keys.task;
  float* logits = task.weights + first_head * task.weight_stride;
  if (keys.neox) {
    key_logits<kBits, true, kHeads>(keys, queries, logits, task.weight_stride);
  } else {
    key_logits<kBits, false, kHeads>(keys, queries, logits, task.weight_stride);
  }
  const int n = kTokens * keys.n_windows;
  alignas(64) std::uint8_t planes[kHeads][2][kMaxTokens + 16];
  const std::uint8_t *high[kHeads], *low[kHeads];
  float unit[kHeads], zero_sum[kHeads];
  float* acc[kHeads];
  const float largest_scale = largest_value_scale(keys);
  for (int g = 0; g < kHeads; ++g) {
    float* row = logits + g * task.weight_stride;
    __m512 top = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (int i = 0; i < n; i += 16)
      top = _mm512_max_ps(top, _mm512_mask_loadu_ps(top, i + 8 < n ? 0xffff : 0x00ff, row + i));
    const float max = _mm512_reduce_max_ps(top);
    task.out.max[first_head + g] = max;
    zero_sum[g] = exponentials(keys, row, n, max, largest_scale, planes[g][0], planes[g][1], &task.out.denom[first_head + g]);
    high[g] = planes[g][0];
    low[g] = planes[g][1];
    unit[g] = largest_scale / 16383.0f;
    acc[g] = task.out.acc + static_cast<std::ptrdiff_t>(first_head + g) * task.shape.value_dim;
  }
  constexpr int kGroups = kHeads <= 3 ? 4 : 2;
  const int groups = task.shape.value_dim / 16;
  int group = 0;
  for (; group + kGroups <= groups; group += kGroups)
    value_sums<kBits, kHeads, kGroups>(keys, high, low, group, unit, zero_sum, acc);
  for (; group < groups; group += 2) value_sums<kBits, kHeads, 2>(keys, high, low, group, unit, zero_sum, acc);
}

template <int kBits>
void decode_bits(const DecodeTask& task) {
  const PaperIntLayout layout{task.head.window, kBits};
  const HeadShape& shape = task.shape;
  const CodeRotation& rotation = code_rotation(*task.head.rope, shape.key_dim);
  const Keys keys{task,
                  layout,
                  rotation,
                  shape.key_dim,
                  task.head.rope->neox,
                  (task.range.end - task.range.begin) / kTokens,
                  task.head.codes.data() + task.range.begin / kTokens};
  for (int first = 0; first < shape.group;) {
    const int heads = shape.group - first <= 4 ? shape.group - first : 4;
    Query queries[kMaxHeads];
    for (int g = 0; g < heads; ++g) {
      const float* q = task.query + static_cast<std::ptrdiff_t>(first + g) * shape.key_dim;
      for (int i = 0; i < shape.key_dim; ++i) {
        const CodeRotation::Slot& slot = rotation.slot(i);
        const float own = q[slot.channel] * task.scale, other = slot.sign * q[slot.partner] * task.scale;
        queries[g].own[i] = own;
        queries[g].partner[i] = other;
        queries[g].amplitude[i] = std::sqrt(own * own + other * other) * rotation.magnitudes()[i];
      }
    }
    switch (heads) {
      case 1: heads_pass<kBits, 1>(keys, queries, first); break;
      case 2: heads_pass<kBits, 2>(keys, queries, first); break;
      case 3: heads_pass<kBits, 3>(keys, queries, first); break;
      default: heads_pass<kBits, 4>(keys, queries, first); break;
    }
    first += heads;
  }
}

int paper_bits(const DecodeTask& task) {
  if (task.head.codec == nullptr) return 0;
  if (task.head.codec->decode == &PaperInt<2>::decode) return 2;
  if (task.head.codec->decode == &PaperInt<4>::decode) return 4;
  return 0;
}

}  // namespace

bool cpu_has_avx512_vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

bool fits_codes_avx512(const DecodeTask& task) {
  const HeadShape& shape = task.shape;
  const int tokens = task.range.end - task.range.begin;
  if (paper_bits(task) == 0 || task.head.window.tokens != kTokens || tokens <= 0 || tokens > kMaxTokens) return false;
  if (shape.key_dim > kMaxDim || shape.value_dim % 32 != 0 || !CodeRotation::fits(*task.head.rope, shape.key_dim))
    return false;
  for (int w = task.range.begin / kTokens; w < task.range.end / kTokens; ++w) {
    const int position = task.head.codes[w].position;
    if (position < 0 || position >= kMaxTablePosition) return false;
  }
  return true;
}

void decode_codes_avx512(const DecodeTask& task) {
  paper_bits(task) == 2 ? decode_bits<2>(task) : decode_bits<4>(task);
}

}  // namespace qevict

#pragma GCC pop_options

#else

namespace qevict {
bool cpu_has_avx512_vnni() { return false; }
bool fits_codes_avx512(const DecodeTask&) { return false; }
void decode_codes_avx512(const DecodeTask&) {}
}  // namespace qevict

#endif
