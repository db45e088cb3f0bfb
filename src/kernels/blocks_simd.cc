// Decode over llama.cpp's blocks of 32 channels (codec/block32.h) in 16-bit products: codes as they lie, times queries
// of 15 bits with a unit for each block, times probabilities (with the blocks' scales) of 15 bits with a unit for each
// 32 tokens and block. Where records are rotated, the query is transformed instead of the keys and the sums instead of
// the values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "codec/block32.h"
#include "codec/hadamard.h"
#include "kernels/simd_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/blocks_simd.cc"
#include "kernels/simd_targets.h"
// After simd_targets.h:
#include "kernels/coded_values-inl.h"
#include "kernels/decode_rows-inl.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

#if QEVICT_CODED_VALUES
static_assert(kBlock == kBlockChannels);

// The key rows or value rows of a range, a tile at a time, with their scales and minima.
template <BlockType kType>
class CodedRows {
 public:
  static constexpr int kHeader = kType == BlockType::q4_1 ? 4 : 2;

  CodedRows(const DecodeTask& task, bool keys)
      : task_(task),
        keys_(keys),
        layout_{task.head.window, kType},
        windows_ahead_(kTokensAhead / task.head.window.tokens + 1),
        token_(task.range.begin) {
    n_blocks_ = (keys ? layout_.shape.key_dim : layout_.shape.value_dim) / kBlockChannels;
  }
  int blocks() const { return n_blocks_; }

  // Up to kTile tokens; 0 at the end. What is missing of a tile is its last token again.
  int next() {
    const int window_tokens = layout_.shape.tokens;
    int window = token_ / window_tokens, within = token_ % window_tokens, count = 0;
    for (; count < kTile && token_ < task_.range.end; ++count, ++token_) {
      const std::byte* record = task_.head.codes[window].record;
      rows_[count] = record + (keys_ ? layout_.key_row(within) : layout_.value_row(within));
      if (keys_ && within == 0) prefetch_record(task_, window + windows_ahead_, layout_.bytes());
      if (++within == window_tokens) {
        within = 0;
        ++window;
      }
    }
    if (count == 0) return 0;
    std::fill(rows_ + count, rows_ + kTile, rows_[count - 1]);
    load_columns(rows_, 0, block_bytes(kType), n_blocks_, scales_);
    if constexpr (kType == BlockType::q4_1) load_columns(rows_, 2, block_bytes(kType), n_blocks_, minima_);
    return count;
  }

  // Codes of channels 16 half ... of a block.
  V8 HWY_INLINE codes(int t, int block, int half) const {
    const std::byte* from = rows_[t] + block * block_bytes(kType) + kHeader;
    const D8 d;
    if constexpr (kType == BlockType::q8_0) {
      return hn::LoadU(d, reinterpret_cast<const std::int8_t*>(from) + 16 * half);
    } else {
      const hn::RebindToUnsigned<D8> du;
      const auto bytes = hn::LoadU(du, reinterpret_cast<const std::uint8_t*>(from));
      const auto nibbles = half == 0 ? hn::And(bytes, hn::Set(du, 15)) : hn::ShiftRight<4>(bytes);
      return kType == BlockType::q4_0 ? hn::Sub(hn::BitCast(d, nibbles), hn::Set(d, 8)) : hn::BitCast(d, nibbles);
    }
  }
  const float* scales(int block) const { return scales_ + block * kTile; }  // [kTile]
  const float* minima(int block) const { return kType == BlockType::q4_1 ? minima_ + block * kTile : nullptr; }

 private:
  const DecodeTask& task_;
  bool keys_;
  Block32Layout layout_;
  int windows_ahead_;
  int n_blocks_;
  int token_;
  const std::byte* rows_[kTile];
  float scales_[kMaxBlocks * kTile], minima_[kType == BlockType::q4_1 ? kMaxBlocks * kTile : 1];
};

// The scaled queries in 16 bits, of one block in its own unit.
struct RoundedQuery {
  const std::int16_t* codes;  // [group][key_dim]
  const float* units;         // [group][blocks]
  const float* sums;          // [group][blocks] of the channels
};

// Logits of 8 tokens: out[g * stride + token].
template <BlockType kType, int kHeads>
HWY_NOINLINE void tile_logits(const CodedRows<kType>& rows, int first, const RoundedQuery& query, int dim, float* out,
                              std::size_t stride) {
  const DF df;
  VF logits[kHeads];
  for (int g = 0; g < kHeads; ++g) logits[g] = hn::Zero(df);
  for (int b = 0; b < rows.blocks(); ++b) {
    V32 quads[2][kHeads];
    for (int i = 0; i < 2; ++i) {
      V32 sums[4][kHeads];
      for (int k = 0; k < 4; ++k) {
        const int t = first + 4 * i + k;
        const V16 low = hn::PromoteTo(D16(), rows.codes(t, b, 0)), high = hn::PromoteTo(D16(), rows.codes(t, b, 1));
        for (int g = 0; g < kHeads; ++g) {
          const std::int16_t* q = query.codes + g * dim + b * kBlockChannels;
          sums[k][g] = hn::Add(products(low, hn::LoadU(D16(), q)), products(high, hn::LoadU(D16(), q + 16)));
        }
      }
      for (int g = 0; g < kHeads; ++g) quads[i][g] = half_sums(sums[0][g], sums[1][g], sums[2][g], sums[3][g]);
    }
    const VF scales = hn::LoadU(df, rows.scales(b) + first);
    for (int g = 0; g < kHeads; ++g) {
      const V32 dots = whole_sums(quads[0][g], quads[1][g]);
      const int at = g * rows.blocks() + b;
      logits[g] = hn::MulAdd(hn::ConvertTo(df, dots), hn::Mul(scales, hn::Set(df, query.units[at])), logits[g]);
      if constexpr (kType == BlockType::q4_1)
        logits[g] = hn::MulAdd(hn::LoadU(df, rows.minima(b) + first), hn::Set(df, query.sums[at]), logits[g]);
    }
  }
  for (int g = 0; g < kHeads; ++g) hn::StoreU(logits[g], df, out + g * stride);
}

void round_query(std::span<const float> query, std::int16_t* codes, float* units, float* sums) {
  for (std::size_t c = 0; c < query.size(); c += kBlockChannels) {
    float largest = 1e-30f, sum = 0.0f;
    for (int i = 0; i < kBlockChannels; ++i) {
      largest = std::max(largest, std::abs(query[c + i]));
      sum += query[c + i];
    }
    units[c / kBlockChannels] = largest / kTop;
    sums[c / kBlockChannels] = sum;
    for (int i = 0; i < kBlockChannels; ++i)
      codes[c + i] = static_cast<std::int16_t>(std::lrint(query[c + i] * (kTop / largest)));
  }
}

template <BlockType kType>
void DecodeBlockType(const DecodeTask& task, bool rotated) {
  clear(task);
  const HeadShape& shape = task.shape;
  const int n = task.range.end - task.range.begin;
  if (n <= 0) return;
  const std::size_t n_query = static_cast<std::size_t>(shape.group) * shape.key_dim, n_units = n_query / kBlockChannels;
  const std::span<float> scratch = thread_scratch(n_query + n_query / 2 + 2 * n_units);
  const std::span<float> query = scratch.first(n_query);
  float* units = scratch.data() + n_query;
  float* sums = units + n_units;
  auto* codes = reinterpret_cast<std::int16_t*>(sums + n_units);
  scale_query(task, query.data());
  if (rotated) hadamard_blocks(query, key_rotation_block(shape.key_dim));
  round_query(query, codes, units, sums);

  int token = 0;
  CodedRows<kType> keys(task, true);
  while (const int count = keys.next()) {
    for_head_groups(shape.group, [&](auto heads, int g) HWY_ATTR {
      constexpr int kHeads = decltype(heads)::value;
      const RoundedQuery q{codes + std::ptrdiff_t{g} * shape.key_dim, units + g * keys.blocks(),
                           sums + g * keys.blocks()};
      float* out = task.weights + g * task.weight_stride + token;
      int t = 0;
      for (; t + kLanes <= count; t += kLanes)
        tile_logits<kType, kHeads>(keys, t, q, shape.key_dim, out + t, task.weight_stride);
      if (t == count) return;
      float tile[kHeads * kLanes];
      tile_logits<kType, kHeads>(keys, t, q, shape.key_dim, tile, kLanes);
      for (int h = 0; h < kHeads; ++h) std::copy_n(tile + h * kLanes, count - t, out + h * task.weight_stride + t);
    });
    token += count;
  }
  softmax_rows(task, n);
  token = 0;
  CodedRows<kType> values(task, false);
  while (const int count = values.next()) {
    for_head_groups(shape.group, [&](auto heads, int g) HWY_ATTR {
      add_values<decltype(heads)::value>(values, count, task.weights + g * task.weight_stride + token,
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
  return with_block_type(*task.head.codec, [&](auto type, bool rotated)
                                               HWY_ATTR { DecodeBlockType<decltype(type)::value>(task, rotated); });
}

CodeReader DecodeBlocksTable() { return &DecodeBlocks; }

#else

CodeReader DecodeBlocksTable() { return nullptr; }  // nothing here reads codes

#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(DecodeBlocksTable);
CodeReader highway_blocks() { return HWY_DYNAMIC_DISPATCH(DecodeBlocksTable)(); }

}  // namespace qevict
#endif
