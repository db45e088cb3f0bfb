// Decode attention in Highway, all targets: f16 tokens, and codes of any codec through its decode().
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/rotation_table.h"
#include "kernels/simd_kernels.h"
#include "kernels/token_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decode_simd.cc"
#include "kernels/simd_targets.h"
// After simd_targets.h:
#include "kernels/decode_rows-inl.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// Dots of kTokens keys with kHeads queries, as vectors of partial sums.
template <int kHeads, int kTokens, class D, class V = hn::Vec<D>>
HWY_INLINE void partial_dots(D d, const Half* const* keys, const float* query, int dim, V (&sums)[kHeads][kTokens]) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int t = 0; t < kTokens; ++t)
    for (int g = 0; g < kHeads; ++g) sums[g][t] = hn::Zero(d);
  for (int c = 0; c < dim; c += lanes) {
    V q[kHeads];
    for (int g = 0; g < kHeads; ++g) q[g] = hn::LoadU(d, query + g * dim + c);
    for (int t = 0; t < kTokens; ++t) {
      const V key = load_half(d, keys[t] + c);
      for (int g = 0; g < kHeads; ++g) sums[g][t] = hn::MulAdd(key, q[g], sums[g][t]);
    }
  }
}

// Logits of `lanes` tokens for kHeads queries: out[g * stride + token].
template <int kHeads, class D, class V = hn::Vec<D>>
HWY_INLINE void logits_tile(D d, const Half* const* keys, const float* query, int dim, float* out, std::size_t stride) {
  constexpr int kLanes = hn::MaxLanes(d);
  if constexpr (kLanes == 1) {
    V sums[kHeads][1];
    partial_dots<kHeads, 1>(d, keys, query, dim, sums);
    for (int g = 0; g < kHeads; ++g) out[g * stride] = hn::GetLane(sums[g][0]);
  } else {
    V quads[kHeads][kLanes / 4];
    for (int i = 0; i < kLanes / 4; ++i) {
      V sums[kHeads][4];
      partial_dots<kHeads, 4>(d, keys + 4 * i, query, dim, sums);
      for (int g = 0; g < kHeads; ++g)
        quads[g][i] = add_pairs(d, add_pairs(d, sums[g][0], sums[g][1]), add_pairs(d, sums[g][2], sums[g][3]));
    }
    for (int g = 0; g < kHeads; ++g) {
      hn::StoreU(sums_in_order(d, quads[g]), d, out + g * stride);
    }
  }
}

// acc[g][c .. c + kVectors lanes) += sum over tokens of p[g][token] * value[token].
template <int kHeads, int kVectors, class D, class V = hn::Vec<D>>
HWY_INLINE void add_values(D d, const Half* const* values, int n, const float* p, std::size_t stride, int c, float* acc,
                           int dim) {
  constexpr int kLanes = hn::MaxLanes(d);
  V sums[kHeads][kVectors];
  for (int g = 0; g < kHeads; ++g)
    for (int v = 0; v < kVectors; ++v) sums[g][v] = hn::LoadU(d, acc + g * dim + c + v * kLanes);
  for (int t = 0; t < n; ++t) {
    V value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load_half(d, values[t] + c + v * kLanes);
    for (int g = 0; g < kHeads; ++g) {
      const V weight = hn::Set(d, p[g * stride + t]);
      for (int v = 0; v < kVectors; ++v) sums[g][v] = hn::MulAdd(weight, value[v], sums[g][v]);
    }
  }
  for (int g = 0; g < kHeads; ++g)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[g][v], d, acc + g * dim + c + v * kLanes);
}

void DecodeF16(const DecodeTask& task) {
  clear(task);
  const int n = task.range.end - task.range.begin;
  if (n <= 0) return;
  const HeadShape& shape = task.shape;
  const std::span<float> query = thread_scratch(static_cast<std::size_t>(shape.group) * shape.key_dim);
  scale_query(task, query.data());
  with_lanes_dividing(shape.key_dim, [&](auto d) HWY_ATTR {
    constexpr int kLanes = hn::MaxLanes(d);
    TokenRows rows(task.head, task.range.begin, task.range.end, TokenRows::Of::keys, shape.key_dim);
    const Half* keys[kLanes];
    int token = 0;
    while (const int count = rows.next(keys, kLanes, true)) {
      for (int i = count; i < kLanes; ++i) keys[i] = keys[count - 1];
      for_head_groups(shape.group, [&](auto heads, int g) HWY_ATTR {
        const float* q = query.data() + g * shape.key_dim;
        float* out = task.weights + g * task.weight_stride + token;
        if (count == kLanes) {
          logits_tile<decltype(heads)::value>(d, keys, q, shape.key_dim, out, task.weight_stride);
        } else {
          float tile[4 * kLanes];
          logits_tile<decltype(heads)::value>(d, keys, q, shape.key_dim, tile, kLanes);
          for (int h = 0; h < decltype(heads)::value; ++h)
            std::copy_n(tile + h * kLanes, count, out + h * task.weight_stride);
        }
      });
      token += count;
    }
  });
  softmax_rows(task, n);
  with_lanes_dividing(shape.value_dim, [&](auto d) HWY_ATTR {
    constexpr int kLanes = hn::MaxLanes(d);
    constexpr int kTile = 64;
    TokenRows rows(task.head, task.range.begin, task.range.end, TokenRows::Of::values, shape.value_dim);
    const Half* values[kTile];
    int token = 0;
    while (const int count = rows.next(values, kTile, true)) {
      for_head_groups(shape.group, [&](auto heads, int g) HWY_ATTR {
        constexpr int kHeads = decltype(heads)::value;
        const float* p = task.weights + g * task.weight_stride + token;
        float* acc = task.out.acc + std::ptrdiff_t{g} * shape.value_dim;
        int c = 0;
        for (; c + 4 * kLanes <= shape.value_dim; c += 4 * kLanes)
          add_values<kHeads, 4>(d, values, count, p, task.weight_stride, c, acc, shape.value_dim);
        for (; c < shape.value_dim; c += kLanes)
          add_values<kHeads, 1>(d, values, count, p, task.weight_stride, c, acc, shape.value_dim);
      });
      token += count;
    }
  });
}

// In place, one key: pairs (first, second) turn by the angle of `position`.
void rotate_key(const Rope& rope, const RotationTable& table, int position, float* key) {
  if (position >= kMaxTablePosition) return rope.rotate({key, static_cast<std::size_t>(2 * rope.pairs())}, position);
  const float* offset = table.offset_row(position % kOffsets);
  const float* block = table.block_row(position / kOffsets);
  const int sines = table.padded_pairs();
  const hn::CappedTag<float, 16> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int pairs = rope.pairs();
  int i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    const auto c0 = hn::LoadU(d, offset + i), s0 = hn::LoadU(d, offset + sines + i);
    const auto c1 = hn::LoadU(d, block + i), s1 = hn::LoadU(d, block + sines + i);
    const auto cosine = hn::NegMulAdd(s0, s1, hn::Mul(c0, c1));
    const auto sine = hn::MulAdd(s0, c1, hn::Mul(c0, s1));
    auto a = hn::Zero(d), b = hn::Zero(d);
    if (rope.neox) {
      a = hn::LoadU(d, key + i);
      b = hn::LoadU(d, key + pairs + i);
    } else {
      hn::LoadInterleaved2(d, key + 2 * i, a, b);
    }
    const auto turned_a = hn::NegMulAdd(b, sine, hn::Mul(a, cosine));
    const auto turned_b = hn::MulAdd(a, sine, hn::Mul(b, cosine));
    if (rope.neox) {
      hn::StoreU(turned_a, d, key + i);
      hn::StoreU(turned_b, d, key + pairs + i);
    } else {
      hn::StoreInterleaved2(turned_a, turned_b, d, key + 2 * i);
    }
  }
  for (; i < pairs; ++i) {
    const float cosine = offset[i] * block[i] - offset[sines + i] * block[sines + i];
    const float sine = offset[sines + i] * block[i] + offset[i] * block[sines + i];
    float& a = key[rope.first(i)];
    float& b = key[rope.second(i)];
    const float old_a = a;
    a = old_a * cosine - b * sine;
    b = old_a * sine + b * cosine;
  }
}

void DecodeWindow(const HeadView& head, const CodeWindow& code, float* keys, float* values) {
  const WindowShape& window = head.window;
  const std::size_t n = window.tokens;
  head.codec->decode(window, {code.record, head.codec->window_bytes(window)}, head.head_data,
                     {keys, n * window.key_dim}, {values, n * window.value_dim});
  if (head.codec->keys_after_rope) return;
  const RotationTable& table = rotation_table(*head.rope);
  for (int i = 0; i < window.tokens; ++i)
    rotate_key(*head.rope, table, code.position + i, keys + std::ptrdiff_t{i} * window.key_dim);
}

float dot(const float* a, const float* b, int n) {
  float result = 0.0f;
  with_lanes_dividing(n, [&](auto d) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (int i = 0; i < n; i += static_cast<int>(hn::Lanes(d)))
      sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
    result = hn::GetLane(hn::SumOfLanes(d, sum));
  });
  return result;
}

// acc = acc * keep + sum over tokens of p[token] * values[token]
void fold_values(const float* p, const float* values, int n, float keep, float* acc, int dim) {
  with_lanes_dividing(dim, [&](auto d) HWY_ATTR {
    for (int c = 0; c < dim; c += static_cast<int>(hn::Lanes(d))) {
      auto sum = hn::Mul(hn::LoadU(d, acc + c), hn::Set(d, keep));
      for (int t = 0; t < n; ++t)
        sum = hn::MulAdd(hn::Set(d, p[t]), hn::LoadU(d, values + std::ptrdiff_t{t} * dim + c), sum);
      hn::StoreU(sum, d, acc + c);
    }
  });
}

// Window by window with a running maximum, so that each record is decoded once and nothing larger than a window is
// expanded.
void DecodeCodes(const DecodeTask& task) {
  clear(task);
  const HeadShape& shape = task.shape;
  const WindowShape& window = task.head.window;
  const int n = task.range.end - task.range.begin;
  if (n <= 0) return;
  const std::size_t query_floats = static_cast<std::size_t>(shape.group) * shape.key_dim;
  const std::size_t key_floats = static_cast<std::size_t>(window.tokens) * window.key_dim;
  const std::size_t value_floats = static_cast<std::size_t>(window.tokens) * window.value_dim;
  const std::span<float> scratch = thread_scratch(query_floats + key_floats + value_floats + window.tokens);
  float* query = scratch.data();
  float* keys = query + query_floats;
  float* values = keys + key_floats;
  float* p = values + value_floats;
  scale_query(task, query);
  for (int token = 0; token < n; token += window.tokens) {
    DecodeWindow(task.head, task.head.codes[(task.range.begin + token) / window.tokens], keys, values);
    for (int g = 0; g < shape.group; ++g) {
      float* logits = task.weights + g * task.weight_stride + token;
      for (int i = 0; i < window.tokens; ++i)
        logits[i] = dot(query + g * shape.key_dim, keys + std::ptrdiff_t{i} * shape.key_dim, shape.key_dim);
      const float top = max_of(logits, window.tokens);
      float& max = task.out.max[g];
      float keep = 1.0f;
      if (top > max) {
        keep = max;
        exp_row(&keep, 1, top);
        max = top;
      }
      std::copy_n(logits, window.tokens, p);
      exp_row(p, window.tokens, max);
      fold_values(p, values, window.tokens, keep, task.out.acc + std::ptrdiff_t{g} * shape.value_dim, shape.value_dim);
    }
  }
  for (int g = 0; g < shape.group; ++g)
    task.out.denom[g] = exp_row(task.weights + g * task.weight_stride, n, task.out.max[g]);
}

DecodeKernels DecodeTable() { return {&DecodeF16, &DecodeCodes, &DecodeWindow}; }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(DecodeTable);
DecodeKernels highway_decode_kernels() { return HWY_DYNAMIC_DISPATCH(DecodeTable)(); }

}  // namespace qevict
#endif
