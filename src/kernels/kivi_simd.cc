// Decode over KIVI's codes (codec/kivi.h) in 16-bit products. Keys: within 32 tokens a channel's scale belongs to the
// query and its zero to the sum, so that logits are codes times a query of 15 bits, made anew for every 32 tokens.
// Values: probabilities with the scales of tokens and blocks, as in coded_values-inl.h.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "codec/kivi.h"
#include "kernels/simd_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kivi_simd.cc"
#include "kernels/simd_targets.h"
// After simd_targets.h:
#include "kernels/coded_values-inl.h"
#include "kernels/decode_rows-inl.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

#if QEVICT_CODED_VALUES
static_assert(kTile == kKiviGroup && kBlock == kKiviGroup);

// The groups of 32 tokens of a range, in order.
class Groups {
 public:
  Groups(const DecodeTask& task, const KiviLayout& layout, bool ahead)
      : task_(task), layout_(layout), ahead_(ahead), token_(task.range.begin) {}

  // Null at the end.
  const std::byte* next() {
    if (token_ >= task_.range.end) return nullptr;
    const int window_tokens = layout_.shape.tokens;
    const int window = token_ / window_tokens, group = token_ % window_tokens / kKiviGroup;
    if (ahead_ && group == 0) prefetch_record(task_, window + kTokensAhead / window_tokens + 1, layout_.bytes());
    token_ += kKiviGroup;
    return task_.head.codes[window].record + group * layout_.group_bytes();
  }

 private:
  const DecodeTask& task_;
  const KiviLayout& layout_;
  bool ahead_;
  int token_;
};

// A query with the scales of a group's channels, in 16 bits, and the sum of its products with their zeros.
struct GroupQuery {
  float unit;
  float from_zeros;
};

// scaled: scratch of [dim].
HWY_NOINLINE GroupQuery round_query(const float* query, const Half* scales, const Half* zeros, int dim, float* scaled,
                                    std::int16_t* codes) {
  const DF d;
  VF top = hn::Set(d, 1e-30f), from_zeros = hn::Zero(d);
  for (int c = 0; c < dim; c += kLanes) {
    const VF q = hn::LoadU(d, query + c), product = hn::Mul(q, load_half(d, scales + c));
    from_zeros = hn::MulAdd(q, load_half(d, zeros + c), from_zeros);
    top = hn::Max(top, hn::Abs(product));
    hn::StoreU(product, d, scaled + c);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, top));
  const VF to_codes = hn::Set(d, kTop / largest);
  const hn::Rebind<std::int16_t, DF> d16;
  for (int c = 0; c < dim; c += kLanes)
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(hn::Mul(hn::LoadU(d, scaled + c), to_codes))), d16, codes + c);
  return {largest / kTop, hn::GetLane(hn::SumOfLanes(d, from_zeros))};
}

template <int kBits, int kShift>
HWY_INLINE V16 codes_of(hn::Vec<hn::RebindToUnsigned<D8>> bytes) {
  const hn::RebindToUnsigned<D8> d;
  return hn::PromoteTo(D16(), hn::And(hn::ShiftRight<kShift>(bytes), hn::Set(d, (1 << kBits) - 1)));
}

// Sums over channels of codes times queries, of tokens 4 quad ... 4 quad + 3: as half_sums() leaves them.
template <int kBits, int kHeads>
HWY_INLINE void quad_sums(const std::byte* key_codes, int quad, const std::int16_t* queries, int dim,
                          V32 (&out)[kHeads]) {
  const hn::RebindToUnsigned<D8> du;
  constexpr int kLanes16 = 16;
  const auto* rows = reinterpret_cast<const std::uint8_t*>(key_codes) + std::ptrdiff_t{quad} * (kBits / 2) * dim;
  V32 sums[4][kHeads];
  for (auto& token : sums)
    for (V32& sum : token) sum = hn::Zero(D32());
  for (int c = 0; c < dim; c += kLanes16) {
    const auto first = hn::LoadU(du, rows + c);
    V16 codes[4];
    if constexpr (kBits == 2) {
      codes[0] = codes_of<2, 0>(first);
      codes[1] = codes_of<2, 2>(first);
      codes[2] = codes_of<2, 4>(first);
      codes[3] = codes_of<2, 6>(first);
    } else {
      const auto second = hn::LoadU(du, rows + dim + c);
      codes[0] = codes_of<4, 0>(first);
      codes[1] = codes_of<4, 4>(first);
      codes[2] = codes_of<4, 0>(second);
      codes[3] = codes_of<4, 4>(second);
    }
    for (int g = 0; g < kHeads; ++g) {
      const V16 q = hn::LoadU(D16(), queries + g * dim + c);
      for (int t = 0; t < 4; ++t) sums[t][g] = hn::Add(sums[t][g], products(codes[t], q));
    }
  }
  for (int g = 0; g < kHeads; ++g) out[g] = half_sums(sums[0][g], sums[1][g], sums[2][g], sums[3][g]);
}

// out[g * stride + token] of the group's 32 tokens.
template <int kBits, int kHeads>
HWY_NOINLINE void group_logits(const std::byte* key_codes, const std::int16_t* queries, const GroupQuery* query,
                               int dim, float* out, std::size_t stride) {
  const DF df;
  for (int t = 0; t < kKiviGroup; t += kLanes) {
    V32 low[kHeads], high[kHeads];
    quad_sums<kBits>(key_codes, t / 4, queries, dim, low);
    quad_sums<kBits>(key_codes, t / 4 + 1, queries, dim, high);
    for (int g = 0; g < kHeads; ++g) {
      const V32 dots = whole_sums(low[g], high[g]);
      const VF logits =
          hn::MulAdd(hn::ConvertTo(df, dots), hn::Set(df, query[g].unit), hn::Set(df, query[g].from_zeros));
      hn::StoreU(logits, df, out + g * stride + t);
    }
  }
}

// The values of one group, as add_values() wants them.
template <int kBits>
class ValueRows {
 public:
  static constexpr int kBytes = kKiviGroup * kBits / 8;  // of a token's block

  explicit ValueRows(const KiviLayout& layout) : layout_(layout), n_blocks_(layout.shape.value_dim / kBlock) {}

  void load(const std::byte* group) {
    codes_ = group + layout_.value_codes();
    const std::byte* rows[kTile];
    for (int t = 0; t < kTile; ++t) rows[t] = group + static_cast<std::size_t>(t) * n_blocks_ * sizeof(Half);
    load_columns(rows, layout_.value_scales(), sizeof(Half), n_blocks_, scales_);
    load_columns(rows, layout_.value_zeros(), sizeof(Half), n_blocks_, minima_);
  }

  int blocks() const { return n_blocks_; }
  const float* scales(int block) const { return scales_ + block * kTile; }
  const float* minima(int block) const { return minima_ + block * kTile; }
  V8 HWY_INLINE codes(int t, int block, int half) const {
    const hn::RebindToUnsigned<D8> du;
    const std::byte* from = codes_ + (static_cast<std::size_t>(t) * n_blocks_ + block) * kBytes;
    auto bytes = hn::Zero(du);
    if constexpr (kBits == 4) {  // channels i and i + 16 share a byte
      bytes = hn::LoadU(du, reinterpret_cast<const std::uint8_t*>(from));
      if (half == 1) bytes = hn::ShiftRight<4>(bytes);
    } else {  // i, i + 8, i + 16 and i + 24
      const hn::Repartition<std::uint64_t, D8> d64;
      std::uint64_t eight;
      std::memcpy(&eight, from, sizeof(eight));
      if (half == 1) eight >>= 4;
      const auto both = hn::Set(d64, eight);
      bytes = hn::BitCast(du, hn::ConcatUpperLower(d64, hn::ShiftRight<2>(both), both));
    }
    return hn::BitCast(D8(), hn::And(bytes, hn::Set(du, (1 << kBits) - 1)));
  }

 private:
  const KiviLayout& layout_;
  int n_blocks_;
  const std::byte* codes_ = nullptr;
  float scales_[kMaxBlocks * kTile], minima_[kMaxBlocks * kTile];
};

template <int kBits>
void DecodeBits(const DecodeTask& task) {
  clear(task);
  const HeadShape& shape = task.shape;
  const int n = task.range.end - task.range.begin;
  if (n <= 0) return;
  const KiviLayout layout{task.head.window, kBits};
  const std::size_t dim = static_cast<std::size_t>(shape.key_dim), n_query = shape.group * dim;
  const std::span<float> scratch = thread_scratch(n_query + dim + n_query / 2);
  float* query = scratch.data();
  float* scaled = query + n_query;
  auto* codes = reinterpret_cast<std::int16_t*>(scaled + dim);
  scale_query(task, query);

  int token = 0;
  Groups keys(task, layout, true);
  while (const std::byte* group = keys.next()) {
    const auto* scales = reinterpret_cast<const Half*>(group + layout.key_scales());
    const auto* zeros = reinterpret_cast<const Half*>(group + layout.key_zeros());
    for_head_groups(shape.group, [&](auto heads, int g) HWY_ATTR {
      constexpr int kHeads = decltype(heads)::value;
      GroupQuery rounded[kHeads];
      std::int16_t* first = codes + g * dim;
      for (int h = 0; h < kHeads; ++h)
        rounded[h] = round_query(query + (g + h) * dim, scales, zeros, shape.key_dim, scaled, first + h * dim);
      group_logits<kBits, kHeads>(group + layout.key_codes(), first, rounded, shape.key_dim,
                                  task.weights + g * task.weight_stride + token, task.weight_stride);
    });
    token += kKiviGroup;
  }
  softmax_rows(task, n);
  token = 0;
  Groups groups(task, layout, false);
  ValueRows<kBits> values(layout);
  while (const std::byte* group = groups.next()) {
    values.load(group);
    for_head_groups(shape.group, [&](auto heads, int g) HWY_ATTR {
      add_values<decltype(heads)::value>(values, kTile, task.weights + g * task.weight_stride + token,
                                         task.weight_stride, task.out.acc + std::ptrdiff_t{g} * shape.value_dim,
                                         shape.value_dim);
    });
    token += kKiviGroup;
  }
}

bool DecodeKivi(const DecodeTask& task) {
  constexpr int kMaxDim = kMaxBlocks * kBlock;
  if (task.head.codec == nullptr || task.shape.key_dim > kMaxDim || task.shape.value_dim > kMaxDim) return false;
  if (task.head.codec->decode == &Kivi<2>::decode) {
    DecodeBits<2>(task);
  } else if (task.head.codec->decode == &Kivi<4>::decode) {
    DecodeBits<4>(task);
  } else {
    return false;
  }
  return true;
}

CodeReader DecodeKiviTable() { return &DecodeKivi; }

#else

CodeReader DecodeKiviTable() { return nullptr; }  // nothing here reads codes

#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(DecodeKiviTable);
CodeReader highway_kivi() { return HWY_DYNAMIC_DISPATCH(DecodeKiviTable)(); }

}  // namespace qevict
#endif
