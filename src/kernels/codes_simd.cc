// Decode over codes in Highway's 16-bit arithmetic, for x86 without VNNI: the method of keys_avx512.h, where it is
// explained, with vectors of any length and plain loops where time does not matter.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <bit>

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
#include "hwy/cache_control.h"
// After simd_targets.h:
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// The places of products in the sums of ReorderWidenMulAccumulate differ elsewhere.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

constexpr int kTokens = 8;     // of a window
constexpr int kChunk = 32;     // windows that share units
constexpr int kMaxDim = 256;
constexpr int kMaxHeads = 4;   // at once
constexpr int kMaxTokens = 2 * kRangeTokens;
constexpr float kKeyUnit = 8192.0f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits

using D16 = hn::CappedTag<std::int16_t, 32>;
using D32 = hn::Repartition<std::int32_t, D16>;
using V16 = hn::Vec<D16>;
using V32 = hn::Vec<D32>;
constexpr int kLanes = hn::MaxLanes(D16());
constexpr int kParts = 32 / kLanes;            // of a register of 8 tokens x 4 channels
constexpr int kPartTokens = kTokens / kParts;

V16 HWY_INLINE broadcast64(const std::int16_t* four) {
  std::int64_t bits;
  std::memcpy(&bits, four, sizeof(bits));
  return hn::BitCast(D16(), hn::Set(hn::Repartition<std::int64_t, D16>(), bits));
}

V16 HWY_INLINE broadcast32(const std::int16_t* two) {
  std::int32_t bits;
  std::memcpy(&bits, two, sizeof(bits));
  return hn::BitCast(D16(), hn::Set(D32(), bits));
}

V32 HWY_INLINE add_pairs_of_products(V32 sums, V16 a, V16 b) {
  V32 unused = hn::Zero(D32());
  return hn::ReorderWidenMulAccumulate(D32(), a, b, sums, unused);
}

// From slot order (PaperIntLayout::key_slot) to registers, rounded.
void to_registers(const float* slots, int dim, std::int16_t* registers) {
  for (int i = 0; i < dim; i += 32) {
    std::uint32_t pairs[16];
    for (int j = 0; j < 16; ++j) {
      const std::uint32_t even = std::bit_cast<std::uint32_t>(slots[i + j] + kMagic);
      const std::uint32_t odd = std::bit_cast<std::uint32_t>(slots[i + 16 + j] + kMagic);
      pairs[j] = (even & 0xffffu) | odd << 16;
    }
    std::memcpy(registers + i, pairs, sizeof(pairs));
  }
}

void load_halves(const std::byte* from, int n, float* out) {
  const hn::CappedTag<float, 16> d;
  for (int i = 0; i < n; i += static_cast<int>(hn::Lanes(d)))
    hn::StoreU(load_half(d, reinterpret_cast<const Half*>(from) + i), d, out + i);
}

struct Query {
  float own[kMaxDim], partner[kMaxDim], amplitude[kMaxDim];  // slot order
};
struct Chunk {
  float largest[kMaxDim], zero_units[kMaxDim], scale_units[kMaxDim];
  std::int16_t query[kMaxHeads][2][kMaxDim];  // register order
  float query_units[kMaxHeads], logit_unit[kMaxHeads];
};

struct Keys {
  const DecodeTask& task;
  const CodeRotation& rotation;
  int dim;
  bool neox;
  int n_windows;
  const CodeWindow* windows;
};

void set_units(const Keys& keys, const float* reach, float scale_factor, Chunk& chunk) {
  for (int i = 0; i < keys.dim; ++i) {
    const int other = !keys.neox ? i ^ 2 : i < keys.dim / 2 ? i + keys.dim / 2 : i - keys.dim / 2;
    chunk.largest[i] = std::max(std::sqrt(reach[i] * reach[i] + reach[other] * reach[other]), 1e-20f);
    chunk.zero_units[i] = kKeyUnit / chunk.largest[i];
    chunk.scale_units[i] = chunk.zero_units[i] * scale_factor;
  }
}

void find_query_units(const Keys& keys, const Query* queries, int heads, Chunk& chunk) {
  const float amplitude = keys.dim <= 128 ? 8190.0f : 4095.0f;
  for (int g = 0; g < heads; ++g) {
    float largest = 1e-30f;
    for (int i = 0; i < keys.dim; ++i) largest = std::max(largest, queries[g].amplitude[i] * chunk.largest[i]);
    chunk.query_units[g] = amplitude / largest;
    chunk.logit_unit[g] = largest / (amplitude * kKeyUnit);
  }
}

void turn_queries(const Keys& keys, const Query* queries, int heads, int block, Chunk& chunk) {
  const float* cosine = keys.rotation.block_row(block);
  const float* sine = cosine + keys.dim;
  for (int g = 0; g < heads; ++g) {
    float own[kMaxDim], other[kMaxDim];
    for (int i = 0; i < keys.dim; ++i) {
      const float unit = chunk.query_units[g] * chunk.largest[i];
      const float q = queries[g].own[i] * unit, p = queries[g].partner[i] * unit;
      own[i] = q * cosine[i] + p * sine[i];
      other[i] = p * cosine[i] - q * sine[i];
    }
    to_registers(own, keys.dim, chunk.query[g][0]);
    to_registers(other, keys.dim, chunk.query[g][1]);
  }
}

// Codes of one register in the lowest bits of its lanes, cleared above. rows: lanes of 16 bits, 64 bytes each.
template <int kBits>
V16 HWY_INLINE codes_at(const std::byte* rows, int index, int part) {
  const D16 d;
  const hn::RebindToUnsigned<D16> du;
  const int bit = index * kBits, shift = bit % 16;
  const auto* row = reinterpret_cast<const std::uint16_t*>(rows + bit / 16 * 64) + part * kLanes;
  auto codes = hn::ShiftRightSame(hn::LoadU(du, row), shift);
  if (shift + kBits > 16) codes = hn::Or(codes, hn::ShiftLeftSame(hn::LoadU(du, row + 32), 16 - shift));
  return hn::BitCast(d, hn::And(codes, hn::Set(du, (1u << kBits) - 1)));
}

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
      const auto level = static_cast<std::uint16_t>(
          std::lrint(levels[std::min(i, levels.size() - 1)] / levels.back() * top));
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
  float mean_[kMaxDim], deviation_[kMaxDim];            // slot order
  std::int16_t means_[kMaxDim], deviations_[kMaxDim];   // register order
  std::int16_t scales_[32];
};

// Logits of one window for kHeads queries.
template <int kHeads, class Source>
void window_logits(const Keys& keys, const Source& source, const CodeWindow& code,
                   const std::int16_t (*query)[kMaxDim], const float* unit, float* logits, std::size_t stride) {
  const D16 d;
  const int apart = keys.neox ? keys.dim / 8 : 1;  // registers between the members of a pair
  for (int part = 0; part < kParts; ++part) {
    V32 sums[kHeads];
    for (int g = 0; g < kHeads; ++g) sums[g] = hn::Zero(D32());
    for (int pair = 0; pair < keys.dim / 8; ++pair) {
      const int ix = keys.neox ? pair : 2 * pair, iy = ix + apart;
      V16 x = source.key(code.record, ix, part), y = source.key(code.record, iy, part);
      const CodeRotation::Turn turn = keys.rotation.turns()[pair];
      if (turn != CodeRotation::Turn::none) {
        const std::int16_t* constants = keys.rotation.in_window(pair) + part * kLanes;
        const V16 sine = hn::LoadU(d, constants + 32);
        const V16 from_y = hn::MulFixedPoint15(y, sine), from_x = hn::MulFixedPoint15(x, sine);
        if (turn == CodeRotation::Turn::full) {
          const V16 cosine = hn::LoadU(d, constants);
          x = hn::MulFixedPoint15(x, cosine);
          y = hn::MulFixedPoint15(y, cosine);
        }
        x = hn::Sub(x, from_y);
        y = hn::Add(y, from_x);
      }
      for (int g = 0; g < kHeads; ++g) {
        sums[g] = add_pairs_of_products(sums[g], x, broadcast64(query[g] + 4 * ix));
        sums[g] = add_pairs_of_products(sums[g], y, broadcast64(query[g] + 4 * iy));
      }
    }
    for (int g = 0; g < kHeads; ++g) {
      std::int32_t lanes[2 * kPartTokens];
      hn::StoreU(sums[g], D32(), lanes);
      for (int t = 0; t < kPartTokens; ++t)
        logits[g * stride + part * kPartTokens + t] = static_cast<float>(lanes[2 * t] + lanes[2 * t + 1]) * unit[g];
    }
  }
}

template <int kHeads, class Source>
void key_logits(const Keys& keys, Source& source, const Query* queries, float* logits, std::size_t stride) {
  Chunk chunk;
  alignas(64) std::int16_t turned[kHeads][kMaxDim];
  const D16 d;
  for (int first = 0; first < keys.n_windows; first += kChunk) {
    const int last = std::min(first + kChunk, keys.n_windows);
    source.find_units(first, last, chunk);
    find_query_units(keys, queries, kHeads, chunk);
    int block = -1;
    for (int w = first; w < last; ++w) {
      const CodeWindow& code = keys.windows[w];
      if (w + kChunk < keys.n_windows) {
        const std::byte* ahead = keys.windows[w + kChunk].record;
        for (std::size_t b = 0; b < source.bytes(); b += 64) hwy::Prefetch(ahead + b);
      }
      if (code.position / kOffsets != block) {
        block = code.position / kOffsets;
        turn_queries(keys, queries, kHeads, block, chunk);
      }
      const std::int16_t* cosine = keys.rotation.offset_row(code.position % kOffsets);
      for (int g = 0; g < kHeads; ++g) {
        for (int i = 0; i < keys.dim; i += kLanes) {
          const V16 own = hn::MulFixedPoint15(hn::LoadU(d, chunk.query[g][0] + i), hn::LoadU(d, cosine + i));
          const V16 other = hn::MulFixedPoint15(hn::LoadU(d, chunk.query[g][1] + i), hn::LoadU(d, cosine + keys.dim + i));
          hn::StoreU(hn::Add(own, other), d, turned[g] + i);
        }
      }
      source.prepare(code, chunk);
      window_logits<kHeads>(keys, source, code, turned, chunk.logit_unit, logits + kTokens * w, stride);
    }
  }
}

// Exponentials in place and 14-bit weights: probability * scale of the token. token_values(window, scale[8], zero[8]).
template <class TokenValues>
void exponentials(const Keys& keys, float* row, float max, float largest, TokenValues token_values, std::int16_t* weights,
                  float* denom, float* zero_sum) {
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
void value_sums(const Keys& keys, const std::int16_t* weights, PairValues pair_values, int flush, float unit, float zero_sum,
                float* acc) {
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

template <class Source, class Values>
void attend_codes(const Keys& keys, Source& source, Values values) {
  const DecodeTask& task = keys.task;
  for (int first = 0; first < task.shape.group; first += kMaxHeads) {
    const int heads = std::min(kMaxHeads, task.shape.group - first);
    Query queries[kMaxHeads];
    for (int g = 0; g < heads; ++g) {
      const float* q = task.query + static_cast<std::ptrdiff_t>(first + g) * keys.dim;
      for (int i = 0; i < keys.dim; ++i) {
        const float own = q[keys.rotation.channels()[i]] * task.scale;
        const float other = q[keys.rotation.partners()[i]] * keys.rotation.signs()[i] * task.scale;
        queries[g].own[i] = own;
        queries[g].partner[i] = other;
        queries[g].amplitude[i] = std::sqrt(own * own + other * other) * keys.rotation.magnitudes()[i];
      }
    }
    float* logits = task.weights + first * task.weight_stride;
    switch (heads) {
      case 1: key_logits<1>(keys, source, queries, logits, task.weight_stride); break;
      case 2: key_logits<2>(keys, source, queries, logits, task.weight_stride); break;
      case 3: key_logits<3>(keys, source, queries, logits, task.weight_stride); break;
      default: key_logits<4>(keys, source, queries, logits, task.weight_stride); break;
    }
    for (int g = first; g < first + heads; ++g) {
      const float* row = task.weights + g * task.weight_stride;
      task.out.max[g] = *std::max_element(row, row + kTokens * keys.n_windows);
      values(g);
    }
  }
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
            scale[t] = scale8_value(std::to_integer<std::uint8_t>(keys.windows[w].record[layout.value_scales(kTokens) + t]));
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
  if (!CodeRotation::fits_windows(task.head, task.range, shape.key_dim, kMaxTokens) || shape.key_dim > kMaxDim) return false;
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
