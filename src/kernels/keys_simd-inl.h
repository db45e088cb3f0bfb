// Keys behind codes in Highway's 16-bit arithmetic, for x86 without VNNI: the method of keys_avx512.h, where it is
// explained, with vectors of any length and plain loops where time does not matter. Included once per target.
#if defined(QEVICT_KERNELS_KEYS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_KEYS_SIMD_INL_H_
#undef QEVICT_KERNELS_KEYS_SIMD_INL_H_
#else
#define QEVICT_KERNELS_KEYS_SIMD_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/decode_rows-inl.h"
#include "kernels/kernel_table.h"
#include "kernels/prefetch.h"
#include "kernels/rotation_table.h"
#include "kernels/simd_math-inl.h"

// The places of products in the sums of ReorderWidenMulAccumulate differ on other machines.
#define QEVICT_CODES_16 (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)

#if QEVICT_CODES_16
HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

constexpr int kTokens = 8;  // of a window
constexpr int kChunk = 32;  // windows that share units
constexpr int kMaxDim = 256;
constexpr int kMaxHeads = 4;  // at once
constexpr int kMaxTokens = 2 * kRangeTokens;
constexpr float kKeyUnit = 8192.0f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits

using D16 = hn::CappedTag<std::int16_t, 32>;
using D32 = hn::Repartition<std::int32_t, D16>;
using V16 = hn::Vec<D16>;
using V32 = hn::Vec<D32>;
constexpr int kLanes = hn::MaxLanes(D16());
constexpr int kParts = 32 / kLanes;  // of a register of 8 tokens x 4 channels
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

// The same for halves times units.
void HWY_INLINE halves_to_registers(const std::byte* from, const float* units, int dim, std::int16_t* registers) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto* halves = reinterpret_cast<const Half*>(from);
  const auto magic = hn::Set(d, kMagic);
  const auto number = [&](int i) HWY_ATTR {
    return hn::BitCast(du, hn::MulAdd(load_half(d, halves + i), hn::LoadU(d, units + i), magic));
  };
  constexpr int kStep = hn::MaxLanes(d);
  for (int i = 0; i < dim; i += 32) {
    for (int j = 0; j < 16; j += kStep) {
      const auto even = hn::And(number(i + j), hn::Set(du, 0xffffu));
      const auto both = hn::Or(even, hn::ShiftLeft<16>(number(i + 16 + j)));
      hn::StoreU(both, du, reinterpret_cast<std::uint32_t*>(registers + i + 2 * j));
    }
  }
}

void load_halves(const std::byte* from, int n, float* out) {  // n: a multiple of 8
  const hn::CappedTag<float, 8> d;
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
  if constexpr (16 % kBits != 0) {
    if (shift + kBits > 16) codes = hn::Or(codes, hn::ShiftLeftSame(hn::LoadU(du, row + 32), 16 - shift));
  }
  return hn::BitCast(d, hn::And(codes, hn::Set(du, (1u << kBits) - 1)));
}

// Logits of one window for kHeads queries.
template <int kHeads, class Source>
void window_logits(const Keys& keys, const Source& source, const CodeWindow& code, const std::int16_t (*query)[kMaxDim],
                   const float* unit, float* logits, std::size_t stride) {
  const D16 d;
  const int apart = keys.neox ? keys.dim / 8 : 1;  // registers between the members of a pair
  V32 sums[kParts][kHeads];
  for (int part = 0; part < kParts; ++part)
    for (int g = 0; g < kHeads; ++g) sums[part][g] = hn::Zero(D32());
  for (int pair = 0; pair < keys.dim / 8; ++pair) {
    const int ix = keys.neox ? pair : 2 * pair, iy = ix + apart;
    V16 x[kParts], y[kParts];
    for (int part = 0; part < kParts; ++part) {
      x[part] = source.key(code.record, ix, part);
      y[part] = source.key(code.record, iy, part);
    }
    const CodeRotation::Turn turn = keys.rotation.turns()[pair];
    if (turn != CodeRotation::Turn::none) {
      for (int part = 0; part < kParts; ++part) {
        const std::int16_t* constants = keys.rotation.in_window(pair) + part * kLanes;
        const V16 sine = hn::LoadU(d, constants + 32);
        const V16 from_y = hn::MulFixedPoint15(y[part], sine), from_x = hn::MulFixedPoint15(x[part], sine);
        if (turn == CodeRotation::Turn::full) {
          const V16 cosine = hn::LoadU(d, constants);
          x[part] = hn::MulFixedPoint15(x[part], cosine);
          y[part] = hn::MulFixedPoint15(y[part], cosine);
        }
        x[part] = hn::Sub(x[part], from_y);
        y[part] = hn::Add(y[part], from_x);
      }
    }
    for (int g = 0; g < kHeads; ++g) {
      const V16 qx = broadcast64(query[g] + 4 * ix), qy = broadcast64(query[g] + 4 * iy);
      for (int part = 0; part < kParts; ++part) {
        sums[part][g] = add_pairs_of_products(sums[part][g], x[part], qx);
        sums[part][g] = add_pairs_of_products(sums[part][g], y[part], qy);
      }
    }
  }
  // Two lanes a token.
  const hn::RebindToFloat<D32> df;
  for (int g = 0; g < kHeads; ++g) {
    const V32 low = sums[0][g], high = sums[kParts - 1][g];
    const V32 sum = hn::Add(hn::ConcatEven(D32(), high, low), hn::ConcatOdd(D32(), high, low));
    const auto scaled = hn::Mul(hn::ConvertTo(df, sum), hn::Set(df, unit[g]));
    if constexpr (kParts == 1) {
      const hn::Half<decltype(df)> half;
      hn::StoreU(hn::LowerHalf(half, scaled), half, logits + g * stride);
    } else {
      hn::StoreU(scaled, df, logits + g * stride);
    }
  }
}

template <int kHeads, class Source>
HWY_NOINLINE void key_logits(const Keys& keys, Source& source, const Query* queries, float* logits,
                             std::size_t stride) {
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
      if (w + kChunk < keys.n_windows) prefetch(keys.windows[w + kChunk].record, source.bytes());
      if (code.position / kOffsets != block) {
        block = code.position / kOffsets;
        turn_queries(keys, queries, kHeads, block, chunk);
      }
      const std::int16_t* cosine = keys.rotation.offset_row(code.position % kOffsets);
      for (int g = 0; g < kHeads; ++g) {
        for (int i = 0; i < keys.dim; i += kLanes) {
          const V16 own = hn::MulFixedPoint15(hn::LoadU(d, chunk.query[g][0] + i), hn::LoadU(d, cosine + i));
          const V16 other =
              hn::MulFixedPoint15(hn::LoadU(d, chunk.query[g][1] + i), hn::LoadU(d, cosine + keys.dim + i));
          hn::StoreU(hn::Add(own, other), d, turned[g] + i);
        }
      }
      source.prepare(code, chunk);
      window_logits<kHeads>(keys, source, code, turned, chunk.logit_unit, logits + kTokens * w, stride);
    }
  }
}

// values(integral constant heads, first head), after their logits and maxima.
template <class Source, class Values>
void attend_codes(const Keys& keys, Source& source, Values values) {
  const DecodeTask& task = keys.task;
  for_head_groups(task.shape.group, [&](auto heads, int first) HWY_ATTR {
    constexpr int kHeads = decltype(heads)::value;
    Query queries[kHeads];
    for (int g = 0; g < kHeads; ++g) {
      const float* q = task.query + static_cast<std::ptrdiff_t>(first + g) * keys.dim;
      for (int i = 0; i < keys.dim; ++i) {
        const float own = q[keys.rotation.channels()[i]] * task.scale;
        const float other = q[keys.rotation.partners()[i]] * keys.rotation.signs()[i] * task.scale;
        queries[g].own[i] = own;
        queries[g].partner[i] = other;
        queries[g].amplitude[i] = std::sqrt(own * own + other * other) * keys.rotation.magnitudes()[i];
      }
    }
    key_logits<kHeads>(keys, source, queries, task.weights + first * task.weight_stride, task.weight_stride);
    for (int g = first; g < first + kHeads; ++g)
      task.out.max[g] = max_of(task.weights + g * task.weight_stride, kTokens * keys.n_windows);
    values(heads, first);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();
#endif  // QEVICT_CODES_16
#endif
