// Keys and values of the kXvY family (codec/kxvy.h), 8 tokens a window, read as codes.
//
// Keys as keys_avx512.h says; a code selects a level, times the token's scale, times the channel's deviation, plus its
// mean. Values: levels of 11 bits times weights of 14 (probability times the token's scale) in vpdpwssd; the rotation
// of the values is undone once, on the sums.
#include "codec/hadamard.h"
#include "codec/kxvy.h"
#include "codec/lloyd_max.h"
#include "codec/scale8.h"
#include "kernels/codes_avx512.h"
#include "kernels/rotation_table.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include "kernels/rows_avx512.h"
// After the target options that it opens:
#include "kernels/keys_avx512.h"

namespace qevict {
namespace {

// 16-bit lanes with code number kIndex of each stream in their lowest bits; what lies above is not cleared.
template <int kBits, int kIndex>
QEVICT_INLINE __m512i codes_at(const std::byte* rows) {
  constexpr int kBit = kIndex * kBits, kRow = kBit / 16, kShift = kBit % 16;
  const __m512i row = _mm512_loadu_si512(rows + 64 * kRow);
  if constexpr (kShift + kBits > 16) {
    const __m512i next = _mm512_loadu_si512(rows + 64 * (kRow + 1));
    return _mm512_or_si512(_mm512_srli_epi16(row, kShift), _mm512_slli_epi16(next, 16 - kShift));
  }
  return kShift == 0 ? row : _mm512_srli_epi16(row, kShift);
}

// The levels, over the largest, times top: repeated, so that vpermw ignores what lies above a code.
template <int kBits>
__m512i level_table(float top) {
  alignas(64) std::int16_t table[32];
  const std::span<const float> levels = lloyd_max_levels(kBits);
  for (int i = 0; i < 32; ++i)
    table[i] = static_cast<std::int16_t>(std::lrint(levels[i % (1 << kBits)] / levels.back() * top));
  return _mm512_load_si512(table);
}

// Scales of two windows' tokens (codec/scale8.h), computed: a table would be gathered from, which is slower.
QEVICT_INLINE __m512 scales_of(const std::byte* a, const std::byte* b) {
  const __m128i codes = _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a)),
                                           _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b)));
  const __m512 exponent = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), _mm512_set1_ps(1.0f / 12.0f));
  return _mm512_maskz_mov_ps(_mm_test_epi8_mask(codes, codes),
                             exp2_of(_mm512_sub_ps(exponent, _mm512_set1_ps(176.0f / 12.0f))));
}

// Of the lower 8 of the scales' codes.
inline float largest_scale(__m128i codes) {
  std::uint8_t bytes[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), codes);
  return std::max(scale8_value(*std::max_element(bytes, bytes + 8)), 1e-20f);
}

template <int kBits, int kDim>
class LevelSource {
 public:
  LevelSource(const Keys& keys, const KxvyLayout& layout)
      : keys_(keys), layout_(layout), levels_(level_table<kBits>(32767.0f)) {
    // Head parameters, from channel order to slots.
    alignas(64) float mean[kDim], deviation[kDim];
    const std::byte* head = keys.task.head.head_data.data();
    for (int i = 0; i < kDim; i += 16) {
      _mm512_store_ps(mean + i, load_halves(head + layout.key_means() + 2 * static_cast<std::size_t>(i)));
      _mm512_store_ps(deviation + i, load_halves(head + layout.key_deviations() + 2 * static_cast<std::size_t>(i)));
    }
    for (int i = 0; i < kDim; i += 16) {
      const __m512i channels = _mm512_loadu_si512(keys.rotation.channels() + i);
      _mm512_store_ps(mean_ + i, _mm512_i32gather_ps(channels, mean, 4));
      _mm512_store_ps(deviation_ + i, _mm512_i32gather_ps(channels, deviation, 4));
    }
  }

  QEVICT_INLINE void prefetch_scales(int window) const {
    prefetch_part(keys_, window, layout_.key_scales(kTokens), 2 * kTokens);
  }
  QEVICT_INLINE void prefetch_codes(int window) const { prefetch_part(keys_, window, 0, layout_.key_scales(kTokens)); }

  void find_units(int first, int last, Chunk& chunk) {
    // Of keys and, behind them, of values.
    __m128i tops = _mm_setzero_si128();
    for (int w = first; w < last; ++w)
      tops = _mm_max_epu8(tops, _mm_loadu_si128(reinterpret_cast<const __m128i*>(keys_.windows[w].record +
                                                                                 layout_.key_scales(kTokens))));
    const __m128i value_tops = _mm_unpackhi_epi64(tops, tops);
    value_tops_ = first == 0 ? value_tops : _mm_max_epu8(value_tops_, value_tops);
    const float scale = largest_scale(tops);
    to_units_ = 32767.0f / scale;
    const __m512 top = _mm512_set1_ps(scale * lloyd_max_levels(kBits).back());
    alignas(64) float reach[kMaxDim];
    for (int i = 0; i < kDim; i += 16)
      _mm512_store_ps(reach + i,
                      _mm512_fmadd_ps(_mm512_load_ps(deviation_ + i), top, _mm512_abs_ps(_mm512_load_ps(mean_ + i))));
    set_units(keys_, reach, scale * lloyd_max_levels(kBits).back(), chunk);
    const __m512 magic = _mm512_set1_ps(kMagic);
    for (int i = 0; i < kDim; i += 32) {
      const auto integers = [&](const float* values, const float* units) {
        return interleave16(_mm512_fmadd_ps(_mm512_load_ps(values + i), _mm512_load_ps(units + i), magic),
                            _mm512_fmadd_ps(_mm512_load_ps(values + i + 16), _mm512_load_ps(units + i + 16), magic));
      };
      _mm512_store_si512(deviations_ + i, integers(deviation_, chunk.scale_units));
      _mm512_store_si512(means_ + i, integers(mean_, chunk.zero_units));
    }
  }

  // Scales of the tokens, in units.
  QEVICT_INLINE void prepare(const CodeWindow* windows, int n, const Chunk&) {
    const std::size_t at = layout_.key_scales(kTokens);
    for (int w = 0; w < n; w += 2) {
      const __m512 scales = scales_of(windows[w].record + at, windows[std::min(w + 1, n - 1)].record + at);
      const __m512i units = _mm512_cvtps_epi32(_mm512_mul_ps(scales, _mm512_set1_ps(to_units_)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(scales_ + kTokens * w), _mm512_cvtepi32_epi16(units));
    }
  }

  // After all chunks: of the values of all windows.
  float largest_value_scale() const { return largest_scale(value_tops_); }

  template <bool kNeox, int kHeads>
  QEVICT_INLINE void sums(const CodeWindow* windows, const int (&window)[2], const TurnedQuery<kHeads> (&query)[2],
                          __m512i (&out)[2][kHeads]) const {
    // Each token's in the 4 lanes of the token.
    const __m512i token = _mm512_set_epi16(7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5, 4, 4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 1, 1,
                                           1, 1, 0, 0, 0, 0);
    const auto scales_of_window = [&](int w) {
      return _mm512_permutexvar_epi16(
          token, _mm512_castsi128_si512(_mm_load_si128(reinterpret_cast<const __m128i*>(scales_ + kTokens * w))));
    };
    const __m512i scales[2] = {scales_of_window(window[0]), scales_of_window(window[1])};
    const std::byte* rows[2] = {windows[window[0]].record, windows[window[1]].record};
    unrolled(std::make_integer_sequence<int, kDim / 8>(), [&](auto i) {
      constexpr int kI = decltype(i)::value;
      constexpr int kX = kNeox ? kI : 2 * kI, kY = kNeox ? kI + kDim / 8 : 2 * kI + 1;  // registers
      __m512i x[2], y[2];
      find_keys<kX>(rows, scales, x);
      find_keys<kY>(rows, scales, y);
      add_products(x, y, keys_.rotation.turns()[kI], keys_.rotation.in_window(kI), query, 4 * kX, 4 * kY, out);
    });
  }

 private:
  template <int kRegister>
  QEVICT_INLINE void find_keys(const std::byte* const (&rows)[2], const __m512i (&scales)[2],
                               __m512i (&keys)[2]) const {
    const __m512i deviation = broadcast64(deviations_ + 4 * kRegister), mean = broadcast64(means_ + 4 * kRegister);
    for (int i = 0; i < 2; ++i) keys[i] = _mm512_permutexvar_epi16(codes_at<kBits, kRegister>(rows[i]), levels_);
    for (int i = 0; i < 2; ++i) keys[i] = _mm512_mulhrs_epi16(keys[i], scales[i]);
    for (int i = 0; i < 2; ++i) keys[i] = _mm512_mulhrs_epi16(keys[i], deviation);
    for (int i = 0; i < 2; ++i) keys[i] = _mm512_add_epi16(keys[i], mean);
  }

  const Keys& keys_;
  const KxvyLayout& layout_;
  __m512i levels_;
  __m128i value_tops_ = _mm_setzero_si128();
  alignas(64) std::int16_t scales_[kBlock * kTokens];
  float to_units_ = 0.0f;
  alignas(64) float mean_[kDim], deviation_[kDim];           // slot order
  alignas(64) std::int16_t means_[kDim], deviations_[kDim];  // register order, in units of the chunk
};

// Exponentials in place, and weight * scale of every token in units of 2^-14 of largest.
template <int kHeads>
QEVICT_NOINLINE void exponentials(const Keys& keys, std::size_t scales_at, float* rows, std::size_t stride,
                                  const float* max, float largest, std::int16_t* const* weights, float* denom) {
  const __m512 to_units = _mm512_set1_ps(16383.0f / largest);
  __m512 sum[kHeads];
  for (int g = 0; g < kHeads; ++g) sum[g] = _mm512_setzero_ps();
  for (int w = 0; w < keys.n_windows; w += 2) {
    const bool pair = w + 1 < keys.n_windows;
    const __mmask16 mask = pair ? 0xffff : 0x00ff;
    const __m512 scales =
        scales_of(keys.windows[w].record + scales_at, keys.windows[pair ? w + 1 : w].record + scales_at);
    const __m512 scale = _mm512_mul_ps(scales, to_units);
    for (int g = 0; g < kHeads; ++g) {
      float* row = rows + g * stride + kTokens * w;
      const __m512 x =
          _mm512_fmsub_ps(_mm512_maskz_loadu_ps(mask, row), _mm512_set1_ps(kLog2E), _mm512_set1_ps(max[g] * kLog2E));
      const __m512 p = _mm512_maskz_mov_ps(mask, exp2_of(x));
      _mm512_mask_storeu_ps(row, mask, p);
      sum[g] = _mm512_add_ps(sum[g], p);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights[g] + kTokens * w),
                          _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(p, scale))));
    }
  }
  for (int g = 0; g < kHeads; ++g) denom[g] = _mm512_reduce_add_ps(sum[g]);
}

// acc[g][first_group * 16 ..] = sum over tokens of weight * level, of 64 rotated channels.
template <int kBits, int kHeads>
QEVICT_NOINLINE void value_sums(const Keys& keys, std::size_t codes_at_byte, const std::int16_t* const* weights,
                                int first_group, float unit, float* acc, int value_dim) {
  constexpr int kFlush = 8;  // windows whose sums fit an int32: 64 * 16383 * 2047 < 2^31
  const __m512i levels = level_table<kBits>(2047.0f);
  __m512 totals[kHeads][4];
  for (auto& head : totals)
    for (__m512& total : head) total = _mm512_setzero_ps();
  for (int first = 0; first < keys.n_windows; first += kFlush) {
    __m512i sums[kHeads][4];
    for (auto& head : sums)
      for (__m512i& sum : head) sum = _mm512_setzero_si512();
    for (int w = first; w < std::min(first + kFlush, keys.n_windows); ++w) {
      const std::byte* rows = keys.windows[w].record + codes_at_byte + first_group / 4 * 64 * kBits;
      unrolled(std::make_integer_sequence<int, 16>(), [&](auto i) {
        constexpr int kI = decltype(i)::value, kGroup = kI / 4, kPair = kI % 4;
        const __m512i x = _mm512_permutexvar_epi16(codes_at<kBits, kI>(rows), levels);
        for (int g = 0; g < kHeads; ++g) {
          const int both = *reinterpret_cast<const int*>(weights[g] + kTokens * w + 2 * kPair);
          sums[g][kGroup] = _mm512_dpwssd_epi32(sums[g][kGroup], x, _mm512_set1_epi32(both));
        }
      });
    }
    for (int g = 0; g < kHeads; ++g)
      for (int c = 0; c < 4; ++c) totals[g][c] = _mm512_add_ps(totals[g][c], _mm512_cvtepi32_ps(sums[g][c]));
  }
  for (int g = 0; g < kHeads; ++g)
    for (int c = 0; c < 4; ++c)
      _mm512_storeu_ps(acc + g * value_dim + 16 * (first_group + c), _mm512_mul_ps(totals[g][c], _mm512_set1_ps(unit)));
}

template <int kKeyBits, int kValueBits, int kDim>
void decode_dim(const DecodeTask& task) {
  const KxvyLayout layout{task.head.window, kKeyBits, kValueBits};
  const Keys keys(task);
  LevelSource<kKeyBits, kDim> source(keys, layout);
  const int value_dim = task.shape.value_dim;
  attend_codes(keys, source, [&](auto count, int first, float* rows) {
    constexpr int kHeads = decltype(count)::value;
    const float largest = source.largest_value_scale();
    alignas(64) std::int16_t weight_memory[kHeads][kMaxTokens + 16];
    std::int16_t* weights[kHeads];
    for (int g = 0; g < kHeads; ++g) weights[g] = weight_memory[g];
    exponentials<kHeads>(keys, layout.value_scales(kTokens), rows, task.weight_stride, task.out.max + first, largest,
                         weights, task.out.denom + first);
    float* acc = task.out.acc + static_cast<std::ptrdiff_t>(first) * value_dim;
    const float unit = largest * lloyd_max_levels(kValueBits).back() / (16383.0f * 2047.0f);
    for (int group = 0; group < value_dim / 16; group += 4)
      value_sums<kValueBits, kHeads>(keys, layout.value_codes(kTokens), weights, group, unit, acc, value_dim);
    const std::byte* means = task.head.head_data.data() + layout.value_means();
    for (int g = 0; g < kHeads; ++g) {
      const std::span<float> row(acc + g * value_dim, static_cast<std::size_t>(value_dim));
      unrotate_values(row, rotation_signs(value_dim));
      const __m512 mass = _mm512_set1_ps(task.out.denom[first + g]);
      for (int c = 0; c < value_dim; c += 16)
        _mm512_storeu_ps(row.data() + c, _mm512_fmadd_ps(mass, load_halves(means + 2 * static_cast<std::size_t>(c)),
                                                         _mm512_loadu_ps(row.data() + c)));
    }
  });
}

template <int kKeyBits, int kValueBits>
bool decode_if(const DecodeTask& task) {
  if (task.head.codec->decode != &Kxvy<kKeyBits, kValueBits>::decode) return false;
  if (task.shape.key_dim == 64) return decode_dim<kKeyBits, kValueBits, 64>(task), true;
  if (task.shape.key_dim == 128) return decode_dim<kKeyBits, kValueBits, 128>(task), true;
  return false;
}

}  // namespace

bool decode_kxvy_avx512(const DecodeTask& task) {
  if (task.head.codec == nullptr || task.shape.value_dim % 64 != 0 || !fits_registers(task)) return false;
  return decode_if<2, 2>(task) || decode_if<2, 3>(task) || decode_if<2, 4>(task) || decode_if<3, 2>(task) ||
         decode_if<3, 3>(task) || decode_if<3, 4>(task) || decode_if<4, 2>(task) || decode_if<4, 3>(task) ||
         decode_if<4, 4>(task);
}

}  // namespace qevict

#pragma GCC pop_options

#else

namespace qevict {
bool decode_kxvy_avx512(const DecodeTask&) { return false; }
}  // namespace qevict

#endif
