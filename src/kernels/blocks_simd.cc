// Decode over llama.cpp's blocks of 32 channels (codec/block32.h) in f32 arithmetic, codes taken as they lie: dots with
// the query block by block, each times its scale; values with the scales multiplied into the probabilities. Where
// records are rotated, the query is transformed instead of the keys and the sums instead of the values.
#include <algorithm>
#include <cstring>
#include <span>

#include "codec/block32.h"
#include "codec/hadamard.h"
#include "kernels/simd_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/blocks_simd.cc"
#include "hwy/cache_control.h"
#include "kernels/simd_targets.h"
// After simd_targets.h:
#include "kernels/decode_rows-inl.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

constexpr int kTile = 32;         // tokens whose scales are unpacked together
constexpr int kMaxBlocks = 32;    // of a row
constexpr int kWindowsAhead = 4;  // windows are smaller than what prefetchers of the hardware follow

using Tag = hn::CappedTag<float, 16>;
constexpr int kLanes = hn::MaxLanes(Tag());
constexpr int kHalves = 16 / kLanes;  // vectors of half a block
using Vector = hn::Vec<Tag>;

// The key rows or value rows of a range, a tile at a time, with their scales and minima.
template <BlockType kType>
class BlockRows {
 public:
  static constexpr int kHeader = kType == BlockType::q4_1 ? 4 : 2;

  BlockRows(const DecodeTask& task, bool keys)
      : task_(task), keys_(keys), layout_{task.head.window, kType}, token_(task.range.begin) {
    n_blocks_ = (keys ? layout_.shape.key_dim : layout_.shape.value_dim) / kBlockChannels;
  }
  int blocks() const { return n_blocks_; }

  // Up to kTile tokens; 0 at the end.
  int next() {
    const int window_tokens = layout_.shape.tokens;
    int window = token_ / window_tokens, within = token_ % window_tokens, count = 0;
    for (; count < kTile && token_ < task_.range.end; ++count, ++token_) {
      const std::byte* record = task_.head.codes[window].record;
      rows_[count] = record + (keys_ ? layout_.key_row(within) : layout_.value_row(within));
      if (within == 0 && window + kWindowsAhead < static_cast<int>(task_.head.codes.size()))
        touch(window + kWindowsAhead);
      if (++within == window_tokens) {
        within = 0;
        ++window;
      }
    }
    if (count > 0) load_scales(count);
    return count;
  }

  const std::byte* codes(int t, int block) const { return rows_[t] + block * block_bytes(kType) + kHeader; }
  const float* scales(int block) const { return scales_ + block * kTile; }  // [kTile]
  const float* minima(int block) const { return minima_ + block * kTile; }

 private:
  void touch(int window) const {
    const std::byte* record = task_.head.codes[window].record;
    const std::byte* end = record + (keys_ ? layout_.value_row(0) : layout_.bytes());
    for (const std::byte* at = record + (keys_ ? 0 : layout_.value_row(0)); at < end; at += 64) hwy::Prefetch(at);
  }
  void load_scales(int count) {
    std::fill(rows_ + count, rows_ + (count + 15) / 16 * 16, rows_[count - 1]);
    load_column(count, 0, scales_);
    if constexpr (kType == BlockType::q4_1) load_column(count, 2, minima_);
  }
  void load_column(int count, int at, float* out) const {
    const Tag d;
    Half halves[kTile];
    for (int b = 0; b < n_blocks_; ++b, out += kTile) {
      for (int t = 0; t < (count + 15) / 16 * 16; ++t)
        std::memcpy(&halves[t], rows_[t] + b * block_bytes(kType) + at, sizeof(Half));
      for (int t = 0; t < count; t += kLanes) hn::StoreU(load_half(d, halves + t), d, out + t);
    }
  }

  const DecodeTask& task_;
  bool keys_;
  Block32Layout layout_;
  int n_blocks_;
  int token_;
  const std::byte* rows_[kTile];
  float scales_[kMaxBlocks * kTile], minima_[kType == BlockType::q4_1 ? kMaxBlocks * kTile : 1];
};

// Codes of channels h kLanes ... and 16 + h kLanes ... of a block.
template <BlockType kType>
HWY_INLINE void load_codes(const std::byte* codes, int h, Vector& low, Vector& high) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  if constexpr (kType == BlockType::q8_0) {
    const hn::Rebind<std::int8_t, Tag> d8;
    const auto* from = reinterpret_cast<const std::int8_t*>(codes) + h * kLanes;
    low = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, from)));
    high = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, from + 16)));
  } else {
    const hn::Rebind<std::uint8_t, Tag> d8;
    const auto bytes = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(codes) + h * kLanes));
    auto first = hn::And(bytes, hn::Set(di, 15)), second = hn::ShiftRight<4>(bytes);
    if constexpr (kType == BlockType::q4_0) {
      first = hn::Sub(first, hn::Set(di, 8));
      second = hn::Sub(second, hn::Set(di, 8));
    }
    low = hn::ConvertTo(d, first);
    high = hn::ConvertTo(d, second);
  }
}

// query_sums: [kHeads][blocks], of the channels of each block.
template <BlockType kType, int kHeads>
HWY_INLINE void token_dots(const BlockRows<kType>& rows, int t, const float* query, int dim, const float* query_sums,
                           Vector (&sums)[kHeads]) {
  const Tag d;
  for (int g = 0; g < kHeads; ++g) sums[g] = hn::Zero(d);
  for (int b = 0; b < rows.blocks(); ++b) {
    const std::byte* codes = rows.codes(t, b);
    const float* q = query + b * kBlockChannels;
    Vector dots[kHeads];
    for (int h = 0; h < kHalves; ++h) {
      Vector low, high;
      load_codes<kType>(codes, h, low, high);
      for (int g = 0; g < kHeads; ++g) {
        const auto q_low = hn::LoadU(d, q + g * dim + h * kLanes), q_high = hn::LoadU(d, q + g * dim + 16 + h * kLanes);
        dots[g] = h == 0 ? hn::Mul(low, q_low) : hn::MulAdd(low, q_low, dots[g]);
        dots[g] = hn::MulAdd(high, q_high, dots[g]);
      }
    }
    const Vector scale = hn::Set(d, rows.scales(b)[t]);
    for (int g = 0; g < kHeads; ++g) sums[g] = hn::MulAdd(dots[g], scale, sums[g]);
    if constexpr (kType == BlockType::q4_1) {
      const Vector minimum = hn::Set(d, rows.minima(b)[t] / kLanes);  // lanes are added up
      for (int g = 0; g < kHeads; ++g)
        sums[g] = hn::MulAdd(hn::Set(d, query_sums[g * rows.blocks() + b]), minimum, sums[g]);
    }
  }
}

// Logits of kLanes tokens: out[g * stride + token].
template <BlockType kType, int kHeads>
HWY_NOINLINE void tile_logits(const BlockRows<kType>& rows, int t, const float* query, int dim, const float* query_sums,
                              float* out, std::size_t stride) {
  const Tag d;
  if constexpr (kLanes == 1) {
    Vector sums[kHeads];
    token_dots<kType, kHeads>(rows, t, query, dim, query_sums, sums);
    for (int g = 0; g < kHeads; ++g) out[g * stride] = hn::GetLane(sums[g]);
  } else {
    Vector quads[kHeads][(kLanes + 3) / 4];
    for (int i = 0; i < kLanes / 4; ++i) {
      Vector sums[4][kHeads];
      for (int k = 0; k < 4; ++k) token_dots<kType, kHeads>(rows, t + 4 * i + k, query, dim, query_sums, sums[k]);
      for (int g = 0; g < kHeads; ++g)
        quads[g][i] = add_pairs(d, add_pairs(d, sums[0][g], sums[1][g]), add_pairs(d, sums[2][g], sums[3][g]));
    }
    for (int g = 0; g < kHeads; ++g) hn::StoreU(sums_in_order(d, quads[g]), d, out + g * stride);
  }
}

// acc[g] += sum over the tile's tokens of p[g][token] * value[token].
template <BlockType kType, int kHeads>
HWY_NOINLINE void add_values(const BlockRows<kType>& rows, int count, const float* p, std::size_t stride, float* acc,
                             int dim) {
  const Tag d;
  for (int b = 0; b < rows.blocks(); ++b) {
    float weights[kHeads][kTile], minima[kHeads] = {};
    for (int g = 0; g < kHeads; ++g) {
      int t = 0;
      for (; t + kLanes <= count; t += kLanes)
        hn::StoreU(hn::Mul(hn::LoadU(d, p + g * stride + t), hn::LoadU(d, rows.scales(b) + t)), d, weights[g] + t);
      for (; t < count; ++t) weights[g][t] = p[g * stride + t] * rows.scales(b)[t];
      if constexpr (kType == BlockType::q4_1)
        for (t = 0; t < count; ++t) minima[g] += p[g * stride + t] * rows.minima(b)[t];
    }
    for (int h = 0; h < kHalves; ++h) {
      float* out = acc + b * kBlockChannels + h * kLanes;
      Vector sums[kHeads][2];
      for (int g = 0; g < kHeads; ++g)
        for (int i = 0; i < 2; ++i) {
          sums[g][i] = hn::LoadU(d, out + g * dim + 16 * i);
          if constexpr (kType == BlockType::q4_1) sums[g][i] = hn::Add(sums[g][i], hn::Set(d, minima[g]));
        }
      for (int t = 0; t < count; ++t) {
        Vector low, high;
        load_codes<kType>(rows.codes(t, b), h, low, high);
        for (int g = 0; g < kHeads; ++g) {
          const Vector weight = hn::Set(d, weights[g][t]);
          sums[g][0] = hn::MulAdd(low, weight, sums[g][0]);
          sums[g][1] = hn::MulAdd(high, weight, sums[g][1]);
        }
      }
      for (int g = 0; g < kHeads; ++g)
        for (int i = 0; i < 2; ++i) hn::StoreU(sums[g][i], d, out + g * dim + 16 * i);
    }
  }
}

template <BlockType kType>
void DecodeBlockType(const DecodeTask& task, bool rotated) {
  clear(task);
  const HeadShape& shape = task.shape;
  const int n = task.range.end - task.range.begin;
  if (n <= 0) return;
  const std::size_t query_floats = static_cast<std::size_t>(shape.group) * shape.key_dim;
  const std::span<float> scratch = thread_scratch(query_floats + query_floats / kBlockChannels);
  const std::span<float> query = scratch.first(query_floats);
  float* query_sums = scratch.data() + query_floats;
  scale_query(task, query.data());
  if (rotated) hadamard_blocks(query, key_rotation_block(shape.key_dim));
  if constexpr (kType == BlockType::q4_1)
    for (std::size_t i = 0; i < query_floats; ++i) {
      if (i % kBlockChannels == 0) query_sums[i / kBlockChannels] = 0.0f;
      query_sums[i / kBlockChannels] += query[i];
    }

  int token = 0;
  BlockRows<kType> keys(task, true);
  while (const int count = keys.next()) {
    for_head_groups(shape.group, [&](auto heads, int g) HWY_ATTR {
      constexpr int kHeads = decltype(heads)::value;
      const float* q = query.data() + g * shape.key_dim;
      const float* q_sums = query_sums + g * keys.blocks();
      float* out = task.weights + g * task.weight_stride + token;
      int t = 0;
      for (; t + kLanes <= count; t += kLanes)
        tile_logits<kType, kHeads>(keys, t, q, shape.key_dim, q_sums, out + t, task.weight_stride);
      if (t == count) return;
      float tile[kHeads * kLanes];
      tile_logits<kType, kHeads>(keys, t, q, shape.key_dim, q_sums, tile, kLanes);
      for (int h = 0; h < kHeads; ++h) std::copy_n(tile + h * kLanes, count - t, out + h * task.weight_stride + t);
    });
    token += count;
  }
  softmax_rows(task, n);
  token = 0;
  BlockRows<kType> values(task, false);
  while (const int count = values.next()) {
    for_head_groups(shape.group, [&](auto heads, int g) HWY_ATTR {
      add_values<kType, decltype(heads)::value>(values, count, task.weights + g * task.weight_stride + token,
                                                task.weight_stride, task.out.acc + std::ptrdiff_t{g} * shape.value_dim,
                                                shape.value_dim);
    });
    token += count;
  }
  if (rotated)
    hadamard_blocks({task.out.acc, static_cast<std::size_t>(shape.group) * shape.value_dim}, kValueRotationBlock);
}

bool DecodeBlocks(const DecodeTask& task) {
  constexpr int kMaxDim = kMaxBlocks * kBlockChannels;
  if (task.head.codec == nullptr || task.shape.key_dim > kMaxDim || task.shape.value_dim > kMaxDim) return false;
  const auto decode = task.head.codec->decode;
  const bool rotated =
      decode == &Block32<BlockType::q8_0, true>::decode || decode == &Block32<BlockType::q4_0, true>::decode;
  if (decode == &Block32<BlockType::q8_0, false>::decode || decode == &Block32<BlockType::q8_0, true>::decode) {
    DecodeBlockType<BlockType::q8_0>(task, rotated);
  } else if (decode == &Block32<BlockType::q4_0, false>::decode || decode == &Block32<BlockType::q4_0, true>::decode) {
    DecodeBlockType<BlockType::q4_0>(task, rotated);
  } else if (decode == &Block32<BlockType::q4_1, false>::decode) {
    DecodeBlockType<BlockType::q4_1>(task, rotated);
  } else {
    return false;
  }
  return true;
}

using DecodeBlocksFunction = bool (*)(const DecodeTask& task);
DecodeBlocksFunction DecodeBlocksTable() { return &DecodeBlocks; }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(DecodeBlocksTable);
bool (*highway_blocks())(const DecodeTask& task) { return HWY_DYNAMIC_DISPATCH(DecodeBlocksTable)(); }

}  // namespace qevict
#endif
