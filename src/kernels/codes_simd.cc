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
    const hn::CappedTag<float, 8> d;
    const auto steps = hn::Set(d, static_cast<float>((1 << kBits) - 1));
    float reach[kMaxDim];
    for (int i = 0; i < keys_.dim; i += static_cast<int>(hn::Lanes(d))) {
      auto most = hn::Zero(d);
      for (int w = first; w < last; ++w) {
        const std::byte* record = keys_.windows[w].record;
        const auto scale = load_half(d, reinterpret_cast<const Half*>(record + layout_.key_scales()) + i);
        const auto zero = load_half(d, reinterpret_cast<const Half*>(record + layout_.key_zeros()) + i);
        most = hn::Max(most, hn::MulAdd(scale, steps, hn::Abs(zero)));
      }
      hn::StoreU(most, d, reach + i);
    }
    set_units(keys_, reach, static_cast<float>(1 << kBits), chunk);
  }
  void prepare(const CodeWindow& code, const Chunk& chunk) {
    halves_to_registers(code.record + layout_.key_scales(), chunk.scale_units, keys_.dim, scale_);
    halves_to_registers(code.record + layout_.key_zeros(), chunk.zero_units, keys_.dim, zero_);
  }
  V16 HWY_INLINE key(const std::byte* rows, int index, int part) const {
    const V16 code = hn::ShiftLeft<15 - kBits>(codes_at<kBits>(rows, index, part));  // a fraction
    return hn::Add(hn::MulFixedPoint15(code, broadcast64(scale_ + 4 * index)), broadcast64(zero_ + 4 * index));
  }

 private:
  const Keys& keys_;
  PaperIntLayout layout_;
  std::int16_t scale_[kMaxDim], zero_[kMaxDim];
};

// Levels of 16 bits for up to 16 codes, from tables of bytes: one for up to 8 codes (low bytes, then high ones).
template <int kBits>
class Levels {
 public:
  explicit Levels(float top) {
    const std::span<const float> levels = lloyd_max_levels(kBits);
    for (std::size_t i = 0; i < kCodes; ++i) {
      const auto level = static_cast<std::uint16_t>(std::lrint(levels[i] / levels.back() * top));
      low_[i] = static_cast<std::uint8_t>(level);
      (kBits < 4 ? low_ + 8 : high_)[i] = static_cast<std::uint8_t>(level >> 8);
    }
  }
  V16 HWY_INLINE of(V16 codes) const {
    const hn::Repartition<std::uint8_t, D16> d8;
    const V16 twice = hn::Or(codes, hn::ShiftLeft<8>(codes));
    if constexpr (kBits < 4) {
      const auto index = hn::BitCast(d8, hn::Or(twice, hn::Set(D16(), 0x0800)));
      return hn::BitCast(D16(), hn::TableLookupBytes(hn::LoadDup128(d8, low_), index));
    } else {
      const auto low = hn::TableLookupBytes(hn::LoadDup128(d8, low_), hn::BitCast(d8, twice));
      const auto high = hn::TableLookupBytes(hn::LoadDup128(d8, high_), hn::BitCast(d8, twice));
      return hn::BitCast(D16(), hn::OddEven(high, low));
    }
  }

 private:
  static constexpr std::size_t kCodes = std::size_t{1} << kBits;
  alignas(16) std::uint8_t low_[16] = {}, high_[16] = {};
};

float largest_scale8(const Keys& keys, std::size_t at, int first, int last) {
  std::byte tops[kTokens] = {};
  for (int w = first; w < last; ++w)
    for (int t = 0; t < kTokens; ++t) tops[t] = std::max(tops[t], keys.windows[w].record[at + t]);
  const std::byte top = *std::max_element(tops, tops + kTokens);
  return std::max(scale8_value(std::to_integer<std::uint8_t>(top)), 1e-20f);
}

template <int kBits>
class LevelSource {
 public:
  LevelSource(const Keys& keys, const KxvyLayout& layout) : keys_(keys), layout_(layout), levels_(32767.0f) {
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
    const float* scales = scale8_table();
    const std::byte* codes = code.record + layout_.key_scales(kTokens);
    for (int t = 0; t < kTokens; ++t) {
      const float scale = scales[std::to_integer<std::uint8_t>(codes[t])];
      const std::uint64_t units = std::bit_cast<std::uint32_t>(scale * to_units_ + kMagic) & 0xffffu;
      const std::uint64_t four = units * 0x0001000100010001u;
      std::memcpy(scales_ + 4 * t, &four, sizeof(four));
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
  Levels<kBits> levels_;
  float to_units_ = 0.0f;
  float mean_[kMaxDim], deviation_[kMaxDim];           // slot order
  std::int16_t means_[kMaxDim], deviations_[kMaxDim];  // register order
  std::int16_t scales_[32];
};

// Scales and zeros of all tokens' values.
struct ValueUnits {
  float scale[kMaxTokens], zero[kMaxTokens];
  float largest = 1e-20f;  // scale

  void find_largest(int n) { largest = std::max(largest, *std::max_element(scale, scale + n)); }
};

// Exponentials in place and 14-bit weights: probability * scale of the token.
template <bool kZeros>
void exponentials(const Keys& keys, float* row, float max, const ValueUnits& units, std::int16_t* weights, float* denom,
                  float* zero_sum) {
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<std::int16_t, decltype(d)> d16;
  const auto top = hn::Set(d, max), log2e = hn::Set(d, kLog2E), unit = hn::Set(d, 16383.0f / units.largest);
  auto sum = hn::Zero(d), zeros = hn::Zero(d);
  for (int t = 0; t < kTokens * keys.n_windows; t += static_cast<int>(hn::Lanes(d))) {
    const auto p = exp2_of(d, hn::Mul(hn::Sub(hn::LoadU(d, row + t), top), log2e));
    hn::StoreU(p, d, row + t);
    sum = hn::Add(sum, p);
    if constexpr (kZeros) zeros = hn::MulAdd(p, hn::LoadU(d, units.zero + t), zeros);
    const auto weight = hn::Mul(hn::Mul(p, hn::LoadU(d, units.scale + t)), unit);
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(weight)), d16, weights + t);
  }
  *denom = hn::GetLane(hn::SumOfLanes(d, sum));
  *zero_sum = hn::GetLane(hn::SumOfLanes(d, zeros));
}

// Adds products of two tokens' weights and values of kLanes / 2 channels for kHeads heads, so that values are unpacked
// once for all of them; totals take over before an int32 overflows. pair_values(window, pair 0..3, block 0..1) gives
// the values of two tokens and the block's channels as 16-bit lanes. acc: of the first head, at the first channel.
constexpr int kValueBlocks = kLanes >= 32 ? 1 : 2;  // registers of 16 channels
template <int kHeads, class PairValues>
HWY_INLINE void value_sums(const Keys& keys, const std::int16_t (*weights)[kMaxTokens], PairValues pair_values,
                           int flush, float unit, const float* zero_sums, float* acc) {
  const hn::RebindToFloat<D32> df;
  constexpr int kChannels = kLanes / 2;
  hn::Vec<decltype(df)> totals[kHeads][kValueBlocks];
  for (int g = 0; g < kHeads; ++g)
    for (int b = 0; b < kValueBlocks; ++b) totals[g][b] = hn::Zero(df);
  for (int first = 0; first < keys.n_windows; first += flush) {
    V32 sums[kHeads][kValueBlocks];
    for (int g = 0; g < kHeads; ++g)
      for (int b = 0; b < kValueBlocks; ++b) sums[g][b] = hn::Zero(D32());
    const int last = std::min(first + flush, keys.n_windows);
    for (int w = first; w < last; ++w) {
      for (int pair = 0; pair < 4; ++pair) {
        V16 values[kValueBlocks];
        for (int b = 0; b < kValueBlocks; ++b) values[b] = pair_values(w, pair, b);
        for (int g = 0; g < kHeads; ++g) {
          const V16 weight = broadcast32(weights[g] + kTokens * w + 2 * pair);
          for (int b = 0; b < kValueBlocks; ++b) sums[g][b] = add_pairs_of_products(sums[g][b], values[b], weight);
        }
      }
    }
    for (int g = 0; g < kHeads; ++g)
      for (int b = 0; b < kValueBlocks; ++b) totals[g][b] = hn::Add(totals[g][b], hn::ConvertTo(df, sums[g][b]));
  }
  for (int g = 0; g < kHeads; ++g)
    for (int b = 0; b < kValueBlocks; ++b)
      hn::StoreU(hn::MulAdd(totals[g][b], hn::Set(df, unit), hn::Set(df, zero_sums[g])), df,
                 acc + std::ptrdiff_t{g} * keys.task.shape.value_dim + b * kChannels);
}

// What heads first .. first + n - 1 bring to the sums over values.
struct Weights {
  std::int16_t of[kMaxHeads][kMaxTokens];
  float zero_sums[kMaxHeads];

  template <bool kZeros>
  void find(const Keys& keys, const ValueUnits& units, int first, int n) {
    const DecodeTask& task = keys.task;
    for (int g = 0; g < n; ++g)
      exponentials<kZeros>(keys, task.weights + (first + g) * task.weight_stride, task.out.max[first + g], units, of[g],
                           &task.out.denom[first + g], &zero_sums[g]);
  }
};

template <int kBits>
struct PaperValues {
  const Keys& keys;
  PaperIntLayout layout;
  V16 HWY_INLINE at(int w, int pair, int c) const {
    const hn::RebindToUnsigned<D16> du;
    const int index = c / 16 * 2 + pair / 2, bit = index * kBits;
    const auto* row = reinterpret_cast<const std::uint16_t*>(keys.windows[w].record + layout.value_codes() +
                                                             bit / 8 * 64 + c % 16 * 4);
    const auto lanes = hn::ShiftRightSame(hn::LoadU(du, row), bit % 8 + pair % 2 * 8);
    return hn::BitCast(D16(), hn::And(lanes, hn::Set(du, (1u << kBits) - 1)));
  }
};

template <int kBits>
void DecodePaper(const Keys& keys) {
  const DecodeTask& task = keys.task;
  const PaperIntLayout layout{task.head.window, kBits};
  const PaperValues<kBits> values{keys, layout};
  PaperSource<kBits> source(keys);
  ValueUnits units;
  for (int w = 0; w < keys.n_windows; ++w) {
    load_halves(keys.windows[w].record + layout.value_scales(), kTokens, units.scale + kTokens * w);
    load_halves(keys.windows[w].record + layout.value_zeros(), kTokens, units.zero + kTokens * w);
  }
  units.find_largest(kTokens * keys.n_windows);
  Weights weights;
  attend_codes(keys, source, [&](auto heads, int first) HWY_ATTR {
    constexpr int kHeads = decltype(heads)::value;
    weights.find<true>(keys, units, first, kHeads);
    for (int g = 0; g < kHeads; ++g) {
      // A value's lane holds tokens 0 and 2, or 1 and 3, of a quad.
      for (int i = 0; i < kTokens * keys.n_windows; i += 4) {
        std::uint64_t quad;
        std::memcpy(&quad, weights.of[g] + i, sizeof(quad));
        quad = (quad & 0xffff00000000ffffu) | (quad >> 16 & 0xffff0000u) | (quad & 0xffff0000u) << 16;
        std::memcpy(weights.of[g] + i, &quad, sizeof(quad));
      }
    }
    float* acc = task.out.acc + std::ptrdiff_t{first} * task.shape.value_dim;
    for (int c = 0; c < task.shape.value_dim; c += 16) {
      value_sums<kHeads>(
          keys, weights.of, [&](int w, int pair, int block) HWY_ATTR { return values.at(w, pair, c + 8 * block); },
          keys.n_windows, units.largest / 16383.0f, weights.zero_sums, acc + c);
    }
  });
}

template <int kKeyBits, int kValueBits>
void DecodeKxvy(const Keys& keys) {
  const DecodeTask& task = keys.task;
  const KxvyLayout layout{task.head.window, kKeyBits, kValueBits};
  LevelSource<kKeyBits> source(keys, layout);
  const Levels<kValueBits> levels(2047.0f);
  ValueUnits units;
  for (int w = 0; w < keys.n_windows; ++w)
    for (int t = 0; t < kTokens; ++t)
      units.scale[kTokens * w + t] =
          scale8_value(std::to_integer<std::uint8_t>(keys.windows[w].record[layout.value_scales(kTokens) + t]));
  units.find_largest(kTokens * keys.n_windows);
  const int value_dim = task.shape.value_dim;
  float mean[2 * kMaxDim];
  load_halves(task.head.head_data.data() + layout.value_means(), value_dim, mean);
  Weights weights;
  attend_codes(keys, source, [&](auto heads, int first) HWY_ATTR {
    constexpr int kHeads = decltype(heads)::value;
    weights.find<false>(keys, units, first, kHeads);
    float* acc = task.out.acc + std::ptrdiff_t{first} * value_dim;
    constexpr int kFlush = 8;  // windows: 64 * 16383 * 2047 < 2^31
    const float unit = units.largest * lloyd_max_levels(kValueBits).back() / (16383.0f * 2047.0f);
    for (int c = 0; c < value_dim; c += 16) {
      value_sums<kHeads>(
          keys, weights.of,
          [&](int w, int pair, int block) HWY_ATTR {
            const std::byte* rows = keys.windows[w].record + layout.value_codes(kTokens);
            return levels.of(codes_at<kValueBits>(rows, c / 16 * 4 + pair, block));
          },
          kFlush, unit, weights.zero_sums, acc + c);
    }
    for (int g = 0; g < kHeads; ++g) {
      const std::span<float> row(acc + std::ptrdiff_t{g} * value_dim, static_cast<std::size_t>(value_dim));
      unrotate_values(row, rotation_signs(value_dim));
      for (int c = 0; c < value_dim; ++c) row[c] += task.out.denom[first + g] * mean[c];
    }
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

CodeReader DecodeCodes16Table() { return &DecodeCodes16; }

#else

CodeReader DecodeCodes16Table() { return nullptr; }  // nothing here reads codes

#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(DecodeCodes16Table);
CodeReader highway_codes16() { return HWY_DYNAMIC_DISPATCH(DecodeCodes16Table)(); }

}  // namespace qevict
#endif
