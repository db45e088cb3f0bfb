// INT2 and INT4 (codec/paper_int.h), 8 tokens a window, read as codes.
//
// Keys as keys_avx512.h says; a code, as a fraction, becomes code * scale + zero. Values: codes stay bytes; the weights
// (probability times the token's scale) are two planes of 7 bits for vpdpbusd.
#include "codec/paper_int.h"
#include "kernels/codes_avx512.h"
#include "kernels/rotation_table.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include "kernels/rows_avx512.h"
// After the target options that it opens:
#include "kernels/keys_avx512.h"

namespace qevict {
namespace {

template <int kBits>
class PaperSource {
 public:
  PaperSource(const Keys& keys, const PaperIntLayout& layout) : keys_(keys), layout_(layout) {}

  QEVICT_INLINE void prefetch_scales(int window) const {
    prefetch_part(keys_, window, layout_.key_scales(), layout_.value_codes() - layout_.key_scales());
    prefetch_part(keys_, window, layout_.value_scales(), 2 * kTokens);
  }
  QEVICT_INLINE void prefetch_codes(int window) const {
    prefetch_part(keys_, window, 0, layout_.key_scales());
    prefetch_part(keys_, window, layout_.value_codes(), layout_.bytes() - layout_.value_codes());
  }

  // Units from the largest zero and scale of the chunk's windows.
  void find_units(int first, int last, Chunk& chunk) {
    const int n = keys_.dim / 32;
    if (first == 0) value_tops_ = _mm_setzero_si128();
    __m512i scales[kMaxDim / 32], zeros[kMaxDim / 32];
    for (int i = 0; i < n; ++i) scales[i] = zeros[i] = _mm512_setzero_si512();
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    for (int w = first; w < last; ++w) {
      const std::byte* record = keys_.windows[w].record;
      for (int i = 0; i < n; ++i) {
        const auto load = [&](std::size_t at) {
          return _mm512_loadu_si512(record + at + 64 * static_cast<std::size_t>(i));
        };
        scales[i] = _mm512_max_epu16(scales[i], load(layout_.key_scales()));
        zeros[i] = _mm512_max_epu16(zeros[i], _mm512_and_si512(load(layout_.key_zeros()), magnitude));
      }
      value_tops_ = _mm_max_epu16(value_tops_,
                                  _mm_loadu_si128(reinterpret_cast<const __m128i*>(record + layout_.value_scales())));
    }
    alignas(64) float reach[kMaxDim];
    for (int i = 0; i < n; ++i) {
      for (int half = 0; half < 2; ++half) {
        const auto widen = [&](__m512i x) {
          return _mm512_cvtph_ps(half == 0 ? _mm512_castsi512_si256(x) : _mm512_extracti64x4_epi64(x, 1));
        };
        const __m512 steps = _mm512_set1_ps(static_cast<float>((1 << kBits) - 1));
        _mm512_store_ps(reach + 32 * i + 16 * half, _mm512_fmadd_ps(widen(scales[i]), steps, widen(zeros[i])));
      }
    }
    set_units(keys_, reach, static_cast<float>(1 << kBits), chunk);  // codes are fractions
  }

  QEVICT_INLINE void prepare(const CodeWindow* windows, int n, const Chunk& chunk) {
    const __m512 magic = _mm512_set1_ps(kMagic);
    for (int w = 0; w < n; ++w) {
      for (int i = 0; i < keys_.dim; i += 32) {
        const auto integers = [&](std::size_t at, const float* units) {
          const std::byte* from = windows[w].record + at + 2 * static_cast<std::size_t>(i);
          return interleave16(_mm512_fmadd_ps(load_halves(from), _mm512_load_ps(units + i), magic),
                              _mm512_fmadd_ps(load_halves(from + 32), _mm512_load_ps(units + i + 16), magic));
        };
        _mm512_store_si512(scale_[w] + i, integers(layout_.key_scales(), chunk.scale_units));
        _mm512_store_si512(zero_[w] + i, integers(layout_.key_zeros(), chunk.zero_units));
      }
    }
  }

  // After all chunks: of the values of all windows.
  float largest_value_scale() const {
    return std::max(_mm512_reduce_max_ps(_mm512_zextps256_ps512(_mm256_cvtph_ps(value_tops_))), 1e-20f);
  }

  template <bool kNeox, int kHeads>
  QEVICT_INLINE void sums(const CodeWindow* windows, const int (&window)[2], const TurnedQuery<kHeads> (&query)[2],
                          __m512i (&out)[2][kHeads]) const {
    constexpr int kPerRow = 16 / kBits;                    // registers
    constexpr int kPairs = kNeox ? kPerRow : kPerRow / 2;  // of one row, or of two rows that lie half a key apart
    const int behind = kNeox ? keys_.dim / 2 : 4;          // from a pair's first register to its second
    const std::size_t row_y = kNeox ? static_cast<std::size_t>(behind / 4 / kPerRow * 64) : 0;
    const std::byte* rows[2] = {windows[window[0]].record, windows[window[1]].record};
    for (int pair = 0; pair < keys_.dim / 8; pair += kPairs) {
      unrolled(std::make_integer_sequence<int, kPairs>(), [&](auto i) {
        constexpr int kI = decltype(i)::value;
        constexpr int kShiftX = (kNeox ? kI : 2 * kI) * kBits, kShiftY = (kNeox ? kI : 2 * kI + 1) * kBits;
        const int at = (kNeox ? 4 : 8) * (pair + kI);
        __m512i x[2], y[2];
        find_keys<kShiftX>(rows, 0, window, at, x);
        find_keys<kShiftY>(rows, row_y, window, at + behind, y);
        add_products(x, y, keys_.rotation.turns()[pair + kI], keys_.rotation.in_window(pair + kI), query, at,
                     at + behind, out);
      });
      for (const std::byte*& row : rows) row += 64;
    }
  }

 private:
  // Codes at bits kShift.. of each lane, as keys.
  template <int kShift>
  QEVICT_INLINE void find_keys(const std::byte* const (&rows)[2], std::size_t row_at, const int (&window)[2], int at,
                               __m512i (&keys)[2]) const {
    constexpr int kUp = 15 - kBits - kShift;  // to the highest bits of a positive fraction
    const __m512i mask = _mm512_set1_epi16(((1 << kBits) - 1) << (15 - kBits));
    for (int i = 0; i < 2; ++i) {
      const __m512i row = _mm512_loadu_si512(rows[i] + row_at);
      keys[i] = _mm512_and_si512(kUp < 0 ? _mm512_srli_epi16(row, -kUp) : _mm512_slli_epi16(row, kUp), mask);
    }
    for (int i = 0; i < 2; ++i) keys[i] = _mm512_mulhrs_epi16(keys[i], broadcast64(scale_[window[i]] + at));
    for (int i = 0; i < 2; ++i) keys[i] = _mm512_add_epi16(keys[i], broadcast64(zero_[window[i]] + at));
  }

  const Keys& keys_;
  const PaperIntLayout& layout_;
  __m128i value_tops_ = _mm_setzero_si128();         // f16, all positive
  alignas(64) std::int16_t scale_[kBlock][kMaxDim];  // register order
  alignas(64) std::int16_t zero_[kBlock][kMaxDim];
};

// The weights of the values as bytes: [window][8 tokens' high 7 bits, then their low 7 bits].
constexpr int kPlaneBytes = 16;

// Exponentials in place, and weight * scale of every token as planes. Leaves the sum of weight * zero in zero_sum.
template <int kHeads>
QEVICT_NOINLINE void exponentials(const Keys& keys, const PaperIntLayout& layout, float* rows, std::size_t stride,
                                  const float* max, float largest_scale, std::uint8_t* const* planes, float* denom,
                                  float* zero_sum) {
  const __m512 log2e = _mm512_set1_ps(kLog2E);
  const __m512 to_units = _mm512_set1_ps(16383.0f / largest_scale);
  __m512 top[kHeads], sum[kHeads], zeros[kHeads];
  for (int g = 0; g < kHeads; ++g) {
    top[g] = _mm512_set1_ps(max[g] * kLog2E);
    sum[g] = zeros[g] = _mm512_setzero_ps();
  }
  for (int w = 0; w < keys.n_windows; w += 2) {
    const bool pair = w + 1 < keys.n_windows;
    const __mmask16 mask = pair ? 0xffff : 0x00ff;
    const std::byte* a = keys.windows[w].record;
    const std::byte* b = keys.windows[pair ? w + 1 : w].record;
    const auto halves = [&](std::size_t at) {
      return _mm512_cvtph_ps(_mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + at)),
                                              _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + at))));
    };
    const __m512 zero = halves(layout.value_zeros());
    const __m512 scale = _mm512_mul_ps(halves(layout.value_scales()), to_units);
    for (int g = 0; g < kHeads; ++g) {
      float* row = rows + g * stride + kTokens * w;
      const __m512 x = _mm512_fmsub_ps(_mm512_maskz_loadu_ps(mask, row), log2e, top[g]);
      const __m512 p = _mm512_maskz_mov_ps(mask, exp2_of(x));
      _mm512_mask_storeu_ps(row, mask, p);
      sum[g] = _mm512_add_ps(sum[g], p);
      zeros[g] = _mm512_fmadd_ps(p, zero, zeros[g]);
      const __m256i units = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(p, scale)));
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(planes[g] + kPlaneBytes * w),
          _mm256_packus_epi16(_mm256_srli_epi16(units, 7), _mm256_and_si256(units, _mm256_set1_epi16(127))));
    }
  }
  for (int g = 0; g < kHeads; ++g) {
    denom[g] = _mm512_reduce_add_ps(sum[g]);
    zero_sum[g] = _mm512_reduce_add_ps(zeros[g]);
  }
}

// acc[g][first_group * 16 ..] = sum over tokens of weight * code, for kGroups groups of 16 channels.
template <int kBits, int kHeads, int kGroups>
QEVICT_NOINLINE void value_sums(const Keys& keys, const PaperIntLayout& layout, const std::uint8_t* const* planes,
                                int first_group, float unit, const float* zero_sum, float* acc, int value_dim) {
  constexpr int kPerRow = 8 / kBits;  // codes of a byte
  __m512i sums[kHeads][kGroups][2];
  for (auto& head : sums)
    for (auto& group : head) group[0] = group[1] = _mm512_setzero_si512();
  const std::size_t at = layout.value_codes() + static_cast<std::size_t>(first_group) * 2 / kPerRow * 64;
  const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
  for (int w = 0; w < keys.n_windows; ++w) {
    const std::byte* row = keys.windows[w].record + at;
    const auto weights = [&](int g, int plane, int quad) {
      return _mm512_set1_epi32(*reinterpret_cast<const int*>(planes[g] + kPlaneBytes * w + 8 * plane + 4 * quad));
    };
    unrolled(std::make_integer_sequence<int, 2 * kGroups>(), [&](auto i) {
      constexpr int kI = decltype(i)::value, kGroup = kI / 2, kQuad = kI % 2, kShift = kI % kPerRow * kBits;
      __m512i codes = _mm512_loadu_si512(row + kI / kPerRow * 64);
      if constexpr (kShift != 0) codes = _mm512_srli_epi16(codes, kShift);
      codes = _mm512_and_si512(codes, mask);
      for (int g = 0; g < kHeads; ++g) {
        sums[g][kGroup][0] = _mm512_dpbusd_epi32(sums[g][kGroup][0], codes, weights(g, 0, kQuad));
        sums[g][kGroup][1] = _mm512_dpbusd_epi32(sums[g][kGroup][1], codes, weights(g, 1, kQuad));
      }
    });
  }
  for (int g = 0; g < kHeads; ++g) {
    for (int c = 0; c < kGroups; ++c) {
      const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(sums[g][c][0], 7), sums[g][c][1]);
      _mm512_storeu_ps(acc + g * value_dim + 16 * (first_group + c),
                       _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), _mm512_set1_ps(unit), _mm512_set1_ps(zero_sum[g])));
    }
  }
}

template <int kBits>
void decode_bits(const DecodeTask& task) {
  const PaperIntLayout layout{task.head.window, kBits};
  const Keys keys(task);
  PaperSource<kBits> source(keys, layout);
  attend_codes(keys, source, [&](auto count, int first, float* rows) {
    constexpr int kHeads = decltype(count)::value;
    const float largest_scale = source.largest_value_scale();
    alignas(64) std::uint8_t plane_bytes[kHeads][2 * kMaxTokens + 2 * kPlaneBytes];
    std::uint8_t* planes[kHeads];
    for (int g = 0; g < kHeads; ++g) planes[g] = plane_bytes[g];
    float zero_sum[kHeads];
    exponentials<kHeads>(keys, layout, rows, task.weight_stride, task.out.max + first, largest_scale, planes,
                         task.out.denom + first, zero_sum);
    const int value_dim = task.shape.value_dim;
    float* acc = task.out.acc + static_cast<std::ptrdiff_t>(first) * value_dim;
    constexpr int kGroups = kHeads <= 3 ? 4 : 2;
    const float unit = largest_scale / 16383.0f;
    int group = 0;
    for (; group + kGroups <= value_dim / 16; group += kGroups)
      value_sums<kBits, kHeads, kGroups>(keys, layout, planes, group, unit, zero_sum, acc, value_dim);
    for (; group < value_dim / 16; group += 2)
      value_sums<kBits, kHeads, 2>(keys, layout, planes, group, unit, zero_sum, acc, value_dim);
  });
}

}  // namespace

bool cpu_has_avx512_vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

bool decode_paper_avx512(const DecodeTask& task) {
  if (task.head.codec == nullptr || task.shape.value_dim % 32 != 0 || !fits_registers(task)) return false;
  if (task.head.codec->decode == &PaperInt<2>::decode) return decode_bits<2>(task), true;
  if (task.head.codec->decode == &PaperInt<4>::decode) return decode_bits<4>(task), true;
  return false;
}

}  // namespace qevict

#pragma GCC pop_options

#else

namespace qevict {
bool cpu_has_avx512_vnni() { return false; }
bool decode_paper_avx512(const DecodeTask&) { return false; }
}  // namespace qevict

#endif
