// llama.cpp's blocks (codec/block32.h), read as codes: bytes without a sign, times queries and weights (probability
// times the block's scale) in two bytes with signs, for vpdpbusd. A query has a unit for each block, the
// weights of 64 tokens one for each block and head.
//
// Keys turn so that one register holds 4 channels of 16 tokens, values so that it holds 4 tokens of 16 channels: either
// serves all query heads, and no sum has to be taken across a register.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "codec/block32.h"
#include "codec/hadamard.h"
#include "kernels/codes_avx512.h"
#include "kernels/prefetch.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include "kernels/rows_avx512.h"

namespace qevict {
namespace {

constexpr int kTile = 64;   // tokens whose scales are unpacked, and whose weights are rounded, together
constexpr int kLanes = 16;  // tokens of a register of keys
constexpr int kMaxBlocks = 8;
constexpr int kMaxDim = kMaxBlocks * kBlockChannels;
constexpr int kMaxGroup = 16;
constexpr int kTokensAhead = 64;  // pages end sooner than prefetchers of the hardware like
constexpr float kTop = 32639.0f;  // 127 * 256 + 127, the largest that two bytes with signs hold
constexpr float kTiny = 1e-30f;

// Codes are read from 0: x = (code - offset) d, and for q4_1 more. In the middle of the codes, so that what rounding of
// the other factor adds is small.
constexpr int offset_of(BlockType type) { return type == BlockType::q8_0 ? 128 : 8; }
constexpr std::size_t header_of(BlockType type) { return type == BlockType::q4_1 ? 4 : 2; }

QEVICT_INLINE __m512i broadcast32(const std::int8_t* from) {
  return _mm512_set1_epi32(*reinterpret_cast<const int*>(from));
}

// The codes of a block of two tokens, as bytes from 0: [32 channels of a | 32 of b].
template <BlockType kType>
QEVICT_INLINE __m512i code_pair(const std::byte* a, const std::byte* b) {
  if constexpr (kType == BlockType::q8_0) {
    const auto load = [](const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); };
    return _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(load(a)), load(b), 1), _mm512_set1_epi8(-128));
  } else {
    const auto load = [](const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
    const __m512i both = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(load(a)), 0xff00, load(b));
    // Low nibbles to the first 16 channels, high ones to the others.
    const __m512i shifts =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_setr_epi64x(0, 0, 4, 4)), _mm256_setr_epi64x(0, 0, 4, 4), 1);
    return _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(15));
  }
}

// The key rows or value rows of a range, a tile at a time, with their scales and, of q4_1, middles.
template <BlockType kType>
class CodedRows {
 public:
  CodedRows(const DecodeTask& task, bool keys)
      : task_(task),
        keys_(keys),
        layout_{task.head.window, kType},
        blocks_((keys ? layout_.shape.key_dim : layout_.shape.value_dim) / kBlockChannels),
        lines_(static_cast<int>((layout_.bytes() + 63) / 64)),
        windows_ahead_(kTokensAhead / task.head.window.tokens + 1),
        window_(task.range.begin / task.head.window.tokens),
        within_(task.range.begin % task.head.window.tokens),
        left_(task.range.end - task.range.begin) {}

  int blocks() const { return blocks_; }

  // Up to kTile tokens; 0 at the end. What is missing of a tile is its last token again.
  int next() {
    const int count = std::min(left_, kTile);
    if (count == 0) return 0;
    left_ -= count;
    const std::size_t row_step = row_bytes(kType, blocks_ * kBlockChannels);
    n_ahead_ = line_ = record_ = within_record_ = 0;
    for (int t = 0; t < count;) {
      const std::byte* row =
          task_.head.codes[window_].record + (keys_ ? layout_.key_row(within_) : layout_.value_row(within_));
      if (keys_ && within_ == 0) touch_later(window_);
      const int run = std::min(layout_.shape.tokens - within_, count - t);
      for (int i = 0; i < run; ++i, row += row_step) rows_[t++] = row;
      if ((within_ += run) == layout_.shape.tokens) {
        within_ = 0;
        ++window_;
      }
    }
    std::fill(rows_ + count, rows_ + kTile, rows_[count - 1]);
    load_column(0, scales_);
    if constexpr (kType == BlockType::q4_1) load_middles();
    return count;
  }

  QEVICT_INLINE __m512i codes(int a, int b, int block) const {
    const std::size_t at = block * block_bytes(kType) + header_of(kType);
    return code_pair<kType>(rows_[a] + at, rows_[b] + at);
  }
  const float* scales(int block) const { return scales_ + block * kTile; }    // [kTile]
  const float* middles(int block) const { return middles_ + block * kTile; }  // of q4_1: x of code 8

  // Brings a share of the records that come kTokensAhead later to the second cache, while keys are read; their values
  // then wait there. All at once would fill the core's list of outstanding lines and stand in the way of its loads.
  // (Values fetched only while values are read: no faster.)
  QEVICT_INLINE void touch(int step, int n_steps) {
    const int until = n_ahead_ * lines_ * (step + 1) / n_steps;
    while (line_ < until) {
      const int n = std::min(until - line_, lines_ - within_record_);
      const std::byte* from = ahead_[record_] + 64 * within_record_;
      for (int i = 0; i < n; ++i) prefetch(from + 64 * i, 1);
      line_ += n;
      if ((within_record_ += n) == lines_) {
        within_record_ = 0;
        ++record_;
      }
    }
  }

 private:
  QEVICT_INLINE void touch_later(int window) {
    const auto ahead = static_cast<std::size_t>(window + windows_ahead_);
    if (ahead < task_.head.codes.size()) ahead_[n_ahead_++] = task_.head.codes[ahead].record;
  }
  QEVICT_INLINE void load_middles() {
    load_column(2, middles_);
    const __m512 offset = _mm512_set1_ps(offset_of(kType));
    for (int i = 0; i < blocks_ * kTile; i += kLanes)
      _mm512_store_ps(middles_ + i, _mm512_fmadd_ps(offset, _mm512_load_ps(scales_ + i), _mm512_load_ps(middles_ + i)));
  }
  // Collects first, converts later: a vector read right behind narrow writes waits for them.
  QEVICT_INLINE void load_column(std::size_t at, float* out) const {
    alignas(64) std::uint16_t halves[kMaxBlocks * kTile];
    std::uint16_t* to = halves;
    for (int b = 0; b < blocks_; ++b, at += block_bytes(kType), to += kTile) {
#pragma GCC unroll 8
      for (int t = 0; t < kTile; ++t) std::memcpy(to + t, rows_[t] + at, sizeof(Half));
    }
    for (int i = 0; i < blocks_ * kTile; i += kLanes)
      _mm512_store_ps(out + i, _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves + i))));
  }

  const DecodeTask& task_;
  bool keys_;
  Block32Layout layout_;
  int blocks_;
  int lines_;  // of a record
  int windows_ahead_;
  int window_;
  int within_;
  int left_;
  int n_ahead_ = 0, line_ = 0, record_ = 0, within_record_ = 0;
  const std::byte* ahead_[kTile];
  const std::byte* rows_[kTile];
  alignas(64) float scales_[kMaxBlocks * kTile];
  alignas(64) float middles_[kType == BlockType::q4_1 ? kMaxBlocks * kTile : kLanes];
};

// One query head, scaled.
struct RoundedQuery {
  std::int8_t planes[2][kMaxDim];  // high, low
  float units[kMaxBlocks];
  float sums[kMaxBlocks];   // of the channels
  int offsets[kMaxBlocks];  // what the codes' offset adds to a product, negated
};

void round_query(std::span<const float> query, int offset, RoundedQuery& rounded) {
  for (std::size_t b = 0; b < query.size() / kBlockChannels; ++b) {
    const std::span<const float> block = query.subspan(b * kBlockChannels, kBlockChannels);
    float largest = kTiny, sum = 0.0f;
    for (const float q : block) {
      largest = std::max(largest, std::abs(q));
      sum += q;
    }
    int total = 0;
    for (int i = 0; i < kBlockChannels; ++i) {
      const int code = static_cast<int>(std::lrint(block[i] * (kTop / largest)));
      const int high = (code + 128) >> 8;
      rounded.planes[0][b * kBlockChannels + i] = static_cast<std::int8_t>(high);
      rounded.planes[1][b * kBlockChannels + i] = static_cast<std::int8_t>(code - 256 * high);
      total += code;
    }
    rounded.units[b] = largest / kTop;
    rounded.sums[b] = sum;
    rounded.offsets[b] = -offset * total;
  }
}

// rows[i] = [8 x 4 channels of token i | of token i + 8] to columns[j] = channels 4j .. 4j + 3 of tokens 0 .. 15.
QEVICT_INLINE void turn_to_tokens(const __m512i (&rows)[8], __m512i (&columns)[8]) {
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13),
                second = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
  __m512i pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    columns[i] = _mm512_permutex2var_epi64(quads[i], first, quads[i + 4]);
    columns[i + 4] = _mm512_permutex2var_epi64(quads[i], second, quads[i + 4]);
  }
}

// Logits of the tile: out[g * stride + token].
template <BlockType kType, int kHeads>
QEVICT_NOINLINE void tile_logits(CodedRows<kType>& rows, int count, const RoundedQuery* queries, float* out,
                                 std::size_t stride) {
  for (int first = 0; first < count; first += kLanes) {
    __m512 logits[kHeads];
    for (int g = 0; g < kHeads; ++g) logits[g] = _mm512_setzero_ps();
    for (int b = 0; b < rows.blocks(); ++b) {
      rows.touch(first / kLanes * rows.blocks() + b, kTile / kLanes * rows.blocks());
      __m512i keys[8], columns[8], high[kHeads], low[kHeads];
      for (int i = 0; i < 8; ++i) keys[i] = rows.codes(first + i, first + i + 8, b);
      turn_to_tokens(keys, columns);
      for (int g = 0; g < kHeads; ++g) {
        high[g] = _mm512_setzero_si512();
        low[g] = _mm512_set1_epi32(queries[g].offsets[b]);
      }
      for (int j = 0; j < 8; ++j) {
        for (int g = 0; g < kHeads; ++g) {
          const int at = b * kBlockChannels + 4 * j;
          high[g] = _mm512_dpbusd_epi32(high[g], columns[j], broadcast32(queries[g].planes[0] + at));
          low[g] = _mm512_dpbusd_epi32(low[g], columns[j], broadcast32(queries[g].planes[1] + at));
        }
      }
      const __m512 scales = _mm512_load_ps(rows.scales(b) + first);
      for (int g = 0; g < kHeads; ++g) {
        const __m512i dots = _mm512_add_epi32(_mm512_slli_epi32(high[g], 8), low[g]);
        logits[g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots),
                                    _mm512_mul_ps(scales, _mm512_set1_ps(queries[g].units[b])), logits[g]);
        if constexpr (kType == BlockType::q4_1)
          logits[g] =
              _mm512_fmadd_ps(_mm512_load_ps(rows.middles(b) + first), _mm512_set1_ps(queries[g].sums[b]), logits[g]);
      }
    }
    for (int g = 0; g < kHeads; ++g)
      _mm512_mask_storeu_ps(out + g * stride + first, first_lanes(count - first), logits[g]);
  }
}

// row[0..n) to exponentials, their maximum and sum.
QEVICT_NOINLINE void exponentials(float* row, int n, float* max, float* denom) {
  *max = max_of_row(row, n);
  const __m512 log2e = _mm512_set1_ps(kLog2E), largest = _mm512_set1_ps(*max);
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 below = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, row + i), largest);
    const __m512 p = _mm512_maskz_mov_ps(mask, exp2_of(_mm512_mul_ps(below, log2e)));
    _mm512_mask_storeu_ps(row + i, mask, p);
    sum = _mm512_add_ps(sum, p);
  }
  *denom = _mm512_reduce_add_ps(sum);
}

// Weights of one head and block. Tokens 4k .. 4k + 3 lie at quad(k).
struct Weights {
  alignas(64) std::int8_t planes[2][kTile];  // high, low
  float unit;

  static constexpr int quad(int k) { return 16 * (k % 4) + 4 * (k / 4); }
};

// Rounds p * scale, [kTile]. What the codes' offset and the middles add to every channel goes to `shared`.
template <BlockType kType>
QEVICT_INLINE void weigh(const __m512 (&p)[kTile / kLanes], const float* scales, const float* middles, Weights& out,
                         __m512& shared) {
  __m512 products[kTile / kLanes], top = _mm512_set1_ps(kTiny);
  for (int i = 0; i < kTile / kLanes; ++i) {
    products[i] = _mm512_mul_ps(p[i], _mm512_load_ps(scales + i * kLanes));
    top = _mm512_max_ps(top, kType == BlockType::q4_0 ? _mm512_abs_ps(products[i]) : products[i]);
    if constexpr (kType == BlockType::q4_1)
      shared = _mm512_fmadd_ps(p[i], _mm512_load_ps(middles + i * kLanes), shared);
  }
  const float largest = _mm512_reduce_max_ps(top);
  out.unit = largest / kTop;
  const __m512 to_codes = _mm512_set1_ps(kTop / largest);
  const auto rounded = [&](int i) { return _mm512_cvtps_epi32(_mm512_mul_ps(products[i], to_codes)); };
  __m512i codes[2], high[2], low[2];
  for (int i = 0; i < 2; ++i) {
    codes[i] = _mm512_packs_epi32(rounded(2 * i), rounded(2 * i + 1));
    high[i] = _mm512_srai_epi16(_mm512_add_epi16(codes[i], _mm512_set1_epi16(128)), 8);
    low[i] = _mm512_sub_epi16(codes[i], _mm512_slli_epi16(high[i], 8));
  }
  const __m512i plane0 = _mm512_packs_epi16(high[0], high[1]), plane1 = _mm512_packs_epi16(low[0], low[1]);
  _mm512_store_si512(out.planes[0], plane0);
  _mm512_store_si512(out.planes[1], plane1);
  const __m512i ones = _mm512_set1_epi8(1), none = _mm512_setzero_si512();
  const __m512i sums = _mm512_add_epi32(_mm512_slli_epi32(_mm512_dpbusd_epi32(none, ones, plane0), 8),
                                        _mm512_dpbusd_epi32(none, ones, plane1));
  shared = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(-offset_of(kType) * out.unit), shared);
}

// acc[g * dim + channel] += sum over the tile's tokens of p[g * stride + token] * value[token], less what is shared by
// the channels of a block: that goes to shared[g][block].
template <BlockType kType, int kHeads>
QEVICT_NOINLINE void add_values(const CodedRows<kType>& rows, int count, const float* p, std::size_t stride, float* acc,
                                int dim, __m512 (*shared)[kMaxBlocks]) {
  __m512 probabilities[kHeads][kTile / kLanes];
  for (int g = 0; g < kHeads; ++g) {
    for (int i = 0; i < kTile / kLanes; ++i)
      probabilities[g][i] = _mm512_maskz_loadu_ps(first_lanes(count - i * kLanes), p + g * stride + i * kLanes);
  }
  for (int b = 0; b < rows.blocks(); ++b) {
    Weights weights[kHeads];
    for (int g = 0; g < kHeads; ++g)
      weigh<kType>(probabilities[g], rows.scales(b), rows.middles(b), weights[g], shared[g][b]);
    // Between the stores above and the loads below, or GCC rebuilds the broadcasts with register shuffles.
    asm volatile("" ::: "memory");
    __m512i sums[kHeads][2][2];  // [plane][which 16 channels]
    for (auto& head : sums)
      for (auto& plane : head) plane[0] = plane[1] = _mm512_setzero_si512();
    for (int t = 0; t < count; t += 8) {
      __m512i row[4], pairs[4], fours[4], codes[2][2];  // codes: [which 4 tokens][which 16 channels]
      for (int i = 0; i < 4; ++i) row[i] = rows.codes(t + i, t + i + 4, b);
      for (int i = 0; i < 2; ++i) {
        pairs[i] = _mm512_unpacklo_epi8(row[2 * i], row[2 * i + 1]);
        pairs[i + 2] = _mm512_unpackhi_epi8(row[2 * i], row[2 * i + 1]);
      }
      for (int i = 0; i < 2; ++i) {
        fours[2 * i] = _mm512_unpacklo_epi16(pairs[2 * i], pairs[2 * i + 1]);
        fours[2 * i + 1] = _mm512_unpackhi_epi16(pairs[2 * i], pairs[2 * i + 1]);
      }
      for (int i = 0; i < 2; ++i) {
        codes[0][i] = _mm512_shuffle_i64x2(fours[2 * i], fours[2 * i + 1], 0x44);
        codes[1][i] = _mm512_shuffle_i64x2(fours[2 * i], fours[2 * i + 1], 0xee);
      }
      for (int q = 0; q < 2; ++q) {
        const int at = Weights::quad(t / 4 + q);
        for (int g = 0; g < kHeads; ++g) {
          for (int plane = 0; plane < 2; ++plane) {
            const __m512i weight = broadcast32(weights[g].planes[plane] + at);
            for (int i = 0; i < 2; ++i) sums[g][plane][i] = _mm512_dpbusd_epi32(sums[g][plane][i], codes[q][i], weight);
          }
        }
      }
    }
    for (int g = 0; g < kHeads; ++g) {
      __m512i both[2];  // of channels 0-3, 16-19, 4-7, 20-23 and of the others
      for (int i = 0; i < 2; ++i) both[i] = _mm512_add_epi32(_mm512_slli_epi32(sums[g][0][i], 8), sums[g][1][i]);
      const __m512i in_order[2] = {_mm512_shuffle_i32x4(both[0], both[1], 0x88),
                                   _mm512_shuffle_i32x4(both[0], both[1], 0xdd)};
      for (int i = 0; i < 2; ++i) {
        float* out = acc + g * dim + b * kBlockChannels + kLanes * i;
        _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_cvtepi32_ps(in_order[i]), _mm512_set1_ps(weights[g].unit),
                                              _mm512_loadu_ps(out)));
      }
    }
  }
}

template <BlockType kType>
void decode_type(const DecodeTask& task, bool rotated) {
  const HeadShape& shape = task.shape;
  RoundedQuery queries[kMaxGroup];
  for (int g = 0; g < shape.group; ++g) {
    float query[kMaxDim];
    for (int i = 0; i < shape.key_dim; ++i)
      query[i] = task.query[static_cast<std::ptrdiff_t>(g) * shape.key_dim + i] * task.scale;
    const std::span<float> channels(query, static_cast<std::size_t>(shape.key_dim));
    if (rotated) hadamard_blocks(channels, key_rotation_block(shape.key_dim));
    round_query(channels, offset_of(kType), queries[g]);
  }

  CodedRows<kType> keys(task, true);
  int token = 0;
  while (const int count = keys.next()) {
    for_head_groups(shape.group, [&](auto heads, int g) {
      tile_logits<kType, decltype(heads)::value>(keys, count, queries + g,
                                                 task.weights + g * task.weight_stride + token, task.weight_stride);
    });
    token += count;
  }
  for (int g = 0; g < shape.group; ++g)
    exponentials(task.weights + g * task.weight_stride, token, task.out.max + g, task.out.denom + g);

  const std::span<float> acc(task.out.acc, static_cast<std::size_t>(shape.group) * shape.value_dim);
  std::fill(acc.begin(), acc.end(), 0.0f);
  __m512 shared[kMaxGroup][kMaxBlocks];
  for (auto& head : shared) std::fill(std::begin(head), std::end(head), _mm512_setzero_ps());
  CodedRows<kType> values(task, false);
  token = 0;
  while (const int count = values.next()) {
    for_head_groups(shape.group, [&](auto heads, int g) {
      add_values<kType, decltype(heads)::value>(values, count, task.weights + g * task.weight_stride + token,
                                                task.weight_stride, acc.data() + std::ptrdiff_t{g} * shape.value_dim,
                                                shape.value_dim, shared + g);
    });
    token += count;
  }
  for (int g = 0; g < shape.group; ++g)
    for (int i = 0; i < shape.value_dim; i += kBlockChannels) {
      const float sum = _mm512_reduce_add_ps(shared[g][i / kBlockChannels]);
      for (float& channel : acc.subspan(static_cast<std::size_t>(g) * shape.value_dim + i, kBlockChannels))
        channel += sum;
    }
  if (rotated) hadamard_blocks(acc, kValueRotationBlock);
}

}  // namespace

bool decode_blocks_avx512(const DecodeTask& task) {
  const HeadShape& shape = task.shape;
  if (task.head.codec == nullptr || shape.key_dim > kMaxDim || shape.value_dim > kMaxDim || shape.group > kMaxGroup ||
      task.range.begin == task.range.end)
    return false;
  return with_block_type(*task.head.codec,
                         [&](auto type, bool rotated) { decode_type<decltype(type)::value>(task, rotated); });
}

}  // namespace qevict

#pragma GCC pop_options

#else

namespace qevict {
bool decode_blocks_avx512(const DecodeTask&) { return false; }
}  // namespace qevict

#endif
