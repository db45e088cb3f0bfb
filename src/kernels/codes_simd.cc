// The codecs of keys_simd-inl.h, and their values: codes or levels times 14-bit weights (probability times the token's
// scale).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "codec/hadamard.h"
#include "codec/kxvy.h"
#include "codec/lloyd_max.h"
#include "codec/paper_int.h"
#include "codec/scale8.h"
#include "kernels/rotation_table.h"
#include "kernels/simd_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codes_simd.cc"
#include "kernels/simd_targets.h"
// After simd_targets.h:
#include "kernels/keys_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

#if QEVICT_CODES_16

template <int kBits>
class PaperSource {
 public:
  PaperSource(const Keys& keys) : keys_(keys), layout_{keys.task.head.window, kBits} {}
  std::size_t bytes() const { return layout_.bytes(); }

  void find_units(int first, int last, Chunk& chunk) const {
    float reach[kMaxDim] = {}, scale[kMaxDim], zero[kMaxDim];
    for (int w = first; w < last; ++w) {
      load(keys_.windows[w].record, scale, zero);
      for (int i = 0; i < keys_.dim; ++i)
        reach[i] = std::max(reach[i], std::abs(zero[i]) + scale[i] * static_cast<float>((1 << kBits) - 1));
    }
    set_units(keys_, reach, static_cast<float>(1 << kBits), chunk);
  }
  void prepare(const CodeWindow& code, const Chunk& chunk) {
    float scale[kMaxDim], zero[kMaxDim];
    load(code.record, scale, zero);
    for (int i = 0; i < keys_.dim; ++i) {
      scale[i] *= chunk.scale_units[i];
      zero[i] *= chunk.zero_units[i];
    }
    to_registers(scale, keys_.dim, scale_);
    to_registers(zero, keys_.dim, zero_);
  }
  V16 HWY_INLINE key(const std::byte* rows, int index, int part) const {
    const V16 code = hn::ShiftLeft<15 - kBits>(codes_at<kBits>(rows, index, part));  // a fraction
    return hn::Add(hn::MulFixedPoint15(code, broadcast64(scale_ + 4 * index)), broadcast64(zero_ + 4 * index));
  }

 private:
  void load(const std::byte* record, float* scale, float* zero) const {
    load_halves(record + layout_.key_scales(), keys_.dim, scale);
    load_halves(record + layout_.key_zeros(), keys_.dim, zero);
  }
  const Keys& keys_;
  PaperIntLayout layout_;
  std::int16_t scale_[kMaxDim], zero_[kMaxDim];
};

// Levels of 16 bits for up to 16 codes, from two tables of bytes.
class Levels {
 public:
  Levels(int bits, float top) {
    const std::span<const float> levels = lloyd_max_levels(bits);
    for (std::size_t i = 0; i < 16; ++i) {
      const auto level =
          static_cast<std::uint16_t>(std::lrint(levels[std::min(i, levels.size() - 1)] / levels.back() * top));
      low_[i] = static_cast<std::uint8_t>(level);
      high_[i] = static_cast<std::uint8_t>(level >> 8);
    }
  }
  V16 HWY_INLINE of(V16 codes) const {
    const hn::Repartition<std::uint8_t, D16> d8;
    const auto index = hn::BitCast(d8, hn::Or(codes, hn::ShiftLeft<8>(codes)));
    const auto low = hn::TableLookupBytes(hn::LoadDup128(d8, low_), index);
    const auto high = hn::TableLookupBytes(hn::LoadDup128(d8, high_), index);
    return hn::BitCast(D16(), hn::OddEven(high, low));
  }

 private:
  alignas(16) std::uint8_t low_[16], high_[16];
};

float largest_scale8(const Keys& keys, std::size_t at, int first, int last) {
  std::byte top{0};
  for (int w = first; w < last; ++w)
    for (int t = 0; t < kTokens; ++t) top = std::max(top, keys.windows[w].record[at + t]);
  return std::max(scale8_value(std::to_integer<std::uint8_t>(top)), 1e-20f);
}

template <int kBits>
class LevelSource {
 public:
  LevelSource(const Keys& keys, const KxvyLayout& layout) : keys_(keys), layout_(layout), levels_(kBits, 32767.0f) {
    float mean[kMaxDim], deviation[kMaxDim];
    load_halves(keys.task.head.head_data.data() + layout.key_means(), keys.dim, mean);
    load_halves(keys.task.head.head_data.data() + layout.key_deviations(), keys.dim, deviation);
    for (int i = 0; i < keys.dim; ++i) {
      mean_[i] = mean[keys.rotation.channels()[i]];
      deviation_[i] = deviation[keys.rotation.channels()[i]];
    }
  }
  std::size_t bytes() const { return layout_.bytes(); }

  void find_units(int first, int last, Chunk& chunk) {
    const float scale = largest_scale8(keys_, layout_.key_scales(kTokens), first, last);
    const float top = scale * lloyd_max_levels(kBits).back();
    to_units_ = 32767.0f / scale;
    float reach[kMaxDim], scaled[kMaxDim];
    for (int i = 0; i < keys_.dim; ++i) reach[i] = std::abs(mean_[i]) + deviation_[i] * top;
    set_units(keys_, reach, top, chunk);
    for (int i = 0; i < keys_.dim; ++i) scaled[i] = deviation_[i] * chunk.scale_units[i];
    to_registers(scaled, keys_.dim, deviations_);
    for (int i = 0; i < keys_.dim; ++i) scaled[i] = mean_[i] * chunk.zero_units[i];
    to_registers(scaled, keys_.dim, means_);
  }
  void prepare(const CodeWindow& code, const Chunk&) {
    for (int t = 0; t < kTokens; ++t) {
      const float scale = scale8_value(std::to_integer<std::uint8_t>(code.record[layout_.key_scales(kTokens) + t]));
      std::fill_n(scales_ + 4 * t, 4, static_cast<std::int16_t>(std::lrint(scale * to_units_)));
    }
  }
  V16 HWY_INLINE key(const std::byte* rows, int index, int part) const {
    const V16 level = levels_.of(codes_at<kBits>(rows, index, part));
    const V16 scaled = hn::MulFixedPoint15(level, hn::LoadU(D16(), scales_ + part * kLanes));
    return hn::Add(hn::MulFixedPoint15(scaled, broadcast64(deviations_ + 4 * index)), broadcast64(means_ + 4 * index));
  }

 private:
  const Keys& keys_;
  const KxvyLayout& layout_;
  Levels levels_;
  float to_units_ = 0.0f;
  float mean_[kMaxDim], deviation_[kMaxDim];           // slot order
  std::int16_t means_[kMaxDim], deviations_[kMaxDim];  // register order
  std::int16_t scales_[32];
};

// Exponentials in place and 14-bit weights: probability * scale of the token. token_values(window, scale[8], zero[8]).
template <class TokenValues>
void exponentials(const Keys& keys, float* row, float max, float largest, TokenValues token_values,
                  std::int16_t* weights, float* denom, float* zero_sum) {
  const hn::CappedTag<float, 8> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  float scale[kTokens], zero[kTokens];
  auto sum = hn::Zero(d), zeros = hn::Zero(d);
  for (int w = 0; w < keys.n_windows; ++w) {
    token_values(w, scale, zero);
    for (int t = 0; t < kTokens; t += lanes) {
      float* at = row + kTokens * w + t;
      const auto p = exp2_of(d, hn::Mul(hn::Sub(hn::LoadU(d, at), hn::Set(d, max)), hn::Set(d, kLog2E)));
      hn::StoreU(p, d, at);
      sum = hn::Add(sum, p);
      zeros = hn::MulAdd(p, hn::LoadU(d, zero + t), zeros);
      const hn::Rebind<std::int16_t, decltype(d)> d16;
      const auto weight = hn::Mul(hn::Mul(p, hn::LoadU(d, scale + t)), hn::Set(d, 16383.0f / largest));
      hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(weight)), d16, weights + kTokens * w + t);
    }
  }
  *denom = hn::GetLane(hn::SumOfLanes(d, sum));
  *zero_sum = hn::GetLane(hn::SumOfLanes(d, zeros));
}

// Adds products of two tokens' weights and values of kLanes / 2 channels; totals take over before an int32 overflows.
// pair_values(window, pair 0..3, vector) gives the values of two tokens as 16-bit lanes.
template <class PairValues>
void value_sums(const Keys& keys, const std::int16_t* weights, PairValues pair_values, int flush, float unit,
                float zero_sum, float* acc) {
  const hn::RebindToFloat<D32> df;
  auto total = hn::Zero(df);
  for (int first = 0; first < keys.n_windows; first += flush) {
    V32 sums = hn::Zero(D32());
    for (int w = first; w < std::min(first + flush, keys.n_windows); ++w)
      for (int pair = 0; pair < 4; ++pair)
        sums = add_pairs_of_products(sums, pair_values(w, pair), broadcast32(weights + kTokens * w + 2 * pair));
    total = hn::Add(total, hn::ConvertTo(df, sums));
  }
  hn::StoreU(hn::MulAdd(total, hn::Set(df, unit), hn::Set(df, zero_sum)), df, acc);
}

template <int kBits>
void DecodePaper(const Keys& keys) {
  const DecodeTask& task = keys.task;
  const PaperIntLayout layout{task.head.window, kBits};
  PaperSource<kBits> source(keys);
  float largest = 1e-20f;
  for (int w = 0; w < keys.n_windows; ++w) {
    float scale[kTokens];
    load_halves(keys.windows[w].record + layout.value_scales(), kTokens, scale);
    largest = std::max(largest, *std::max_element(scale, scale + kTokens));
  }
  attend_codes(keys, source, [&](int g) HWY_ATTR {
    std::int16_t weights[kMaxTokens];
    float zero_sum;
    exponentials(
        keys, task.weights + g * task.weight_stride, task.out.max[g], largest,
        [&](int w, float* scale, float* zero) HWY_ATTR {
          load_halves(keys.windows[w].record + layout.value_scales(), kTokens, scale);
          load_halves(keys.windows[w].record + layout.value_zeros(), kTokens, zero);
        },
        weights, &task.out.denom[g], &zero_sum);
    // A value's lane holds tokens 0 and 2, or 1 and 3, of a quad.
    for (int i = 0; i < kTokens * keys.n_windows; i += 4) std::swap(weights[i + 1], weights[i + 2]);
    float* acc = task.out.acc + std::ptrdiff_t{g} * task.shape.value_dim;
    for (int c = 0; c < task.shape.value_dim; c += kLanes / 2) {
      value_sums(
          keys, weights,
          [&](int w, int pair) HWY_ATTR {
            const hn::RebindToUnsigned<D16> du;
            const int index = c / 16 * 2 + pair / 2, bit = index * kBits;
            const auto* row = reinterpret_cast<const std::uint16_t*>(keys.windows[w].record + layout.value_codes() +
                                                                     bit / 8 * 64 + c % 16 * 4);
            const auto lanes = hn::ShiftRightSame(hn::LoadU(du, row), bit % 8 + pair % 2 * 8);
            return hn::BitCast(D16(), hn::And(lanes, hn::Set(du, (1u << kBits) - 1)));
          },
          keys.n_windows, largest / 16383.0f, zero_sum, acc + c);
    }
  });
}

template <int kKeyBits, int kValueBits>
void DecodeKxvy(const Keys& keys) {
  const DecodeTask& task = keys.task;
  const KxvyLayout layout{task.head.window, kKeyBits, kValueBits};
  LevelSource<kKeyBits> source(keys, layout);
  const Levels levels(kValueBits, 2047.0f);
  const float largest = largest_scale8(keys, layout.value_scales(kTokens), 0, keys.n_windows);
  const int value_dim = task.shape.value_dim;
  float mean[2 * kMaxDim];
  load_halves(task.head.head_data.data() + layout.value_means(), value_dim, mean);
  attend_codes(keys, source, [&](int g) HWY_ATTR {
    std::int16_t weights[kMaxTokens];
    float zero_sum;
    exponentials(
        keys, task.weights + g * task.weight_stride, task.out.max[g], largest,
        [&](int w, float* scale, float* zero) HWY_ATTR {
          for (int t = 0; t < kTokens; ++t) {
            scale[t] =
                scale8_value(std::to_integer<std::uint8_t>(keys.windows[w].record[layout.value_scales(kTokens) + t]));
            zero[t] = 0.0f;
          }
        },
        weights, &task.out.denom[g], &zero_sum);
    float* acc = task.out.acc + std::ptrdiff_t{g} * value_dim;
    constexpr int kFlush = 8;  // windows: 64 * 16383 * 2047 < 2^31
    const float unit = largest * lloyd_max_levels(kValueBits).back() / (16383.0f * 2047.0f);
    for (int c = 0; c < value_dim; c += kLanes / 2) {
      value_sums(
          keys, weights,
          [&](int w, int pair) HWY_ATTR {
            const std::byte* rows = keys.windows[w].record + layout.value_codes(kTokens);
            return levels.of(codes_at<kValueBits>(rows, c / 16 * 4 + pair, c % 16 * 2 / kLanes));
          },
          kFlush, unit, 0.0f, acc + c);
    }
    const std::span<float> row(acc, static_cast<std::size_t>(value_dim));
    unrotate_values(row, rotation_signs(value_dim));
    for (int c = 0; c < value_dim; ++c) row[c] += task.out.denom[g] * mean[c];
  });
}

using DecodeKeys = void (*)(const Keys& keys);

template <int kKeyBits, int kValueBits>
bool is_kxvy(const DecodeTask& task) {
  return task.head.codec->decode == &Kxvy<kKeyBits, kValueBits>::decode;
}

DecodeKeys kernel_of(const DecodeTask& task) {
  if (task.head.codec->decode == &PaperInt<2>::decode) return &DecodePaper<2>;
  if (task.head.codec->decode == &PaperInt<4>::decode) return &DecodePaper<4>;
  if (task.shape.value_dim % 64 != 0 || task.shape.key_dim % 64 != 0) return nullptr;
  if (is_kxvy<2, 2>(task)) return &DecodeKxvy<2, 2>;
  if (is_kxvy<2, 3>(task)) return &DecodeKxvy<2, 3>;
  if (is_kxvy<2, 4>(task)) return &DecodeKxvy<2, 4>;
  if (is_kxvy<3, 2>(task)) return &DecodeKxvy<3, 2>;
  if (is_kxvy<3, 3>(task)) return &DecodeKxvy<3, 3>;
  if (is_kxvy<3, 4>(task)) return &DecodeKxvy<3, 4>;
  if (is_kxvy<4, 2>(task)) return &DecodeKxvy<4, 2>;
  if (is_kxvy<4, 3>(task)) return &DecodeKxvy<4, 3>;
  if (is_kxvy<4, 4>(task)) return &DecodeKxvy<4, 4>;
  return nullptr;
}

bool DecodeCodes16(const DecodeTask& task) {
  const HeadShape& shape = task.shape;
  if (task.head.codec == nullptr || shape.value_dim % 32 != 0 || shape.value_dim > 2 * kMaxDim) return false;
  if (!CodeRotation::fits_windows(task.head, task.range, shape.key_dim, kMaxTokens) || shape.key_dim > kMaxDim)
    return false;
  const DecodeKeys decode = kernel_of(task);
  if (decode == nullptr) return false;
  decode(Keys{task, code_rotation(*task.head.rope, shape.key_dim), shape.key_dim, task.head.rope->neox,
              (task.range.end - task.range.begin) / kTokens, task.head.codes.data() + task.range.begin / kTokens});
  return true;
}

#else

bool DecodeCodes16(const DecodeTask&) { return false; }

#endif

using DecodeCodes16Function = bool (*)(const DecodeTask& task);
DecodeCodes16Function DecodeCodes16Table() { return &DecodeCodes16; }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(DecodeCodes16Table);
bool (*highway_codes16())(const DecodeTask& task) { return HWY_DYNAMIC_DISPATCH(DecodeCodes16Table)(); }

}  // namespace qevict
#endif
