// Prefill stripes in Highway, all targets, f32 throughout.
//
// A stripe is a few query rows with all their group heads. Its logits over every visible key go to a scratch row each,
// are normalised exactly, added to the column sums, and multiplied by the values. Every row's sums run over keys in
// ascending order in the same lanes, so a row's result does not depend on the rows beside it.
#include <algorithm>

#include "kernels/prefill_past.h"
#include "kernels/simd_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/prefill_simd.cc"
#include "kernels/simd_targets.h"
// After simd_targets.h:
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// Packed keys: [group of 16 keys][key_dim][16] f32. Packed values: [token][value_dim] f32.
constexpr int kKeyGroup = 16;
constexpr int kRowsAtOnce = 6;  // of the micro-kernels

using KeyTag = hn::CappedTag<float, kKeyGroup>;
constexpr int kKeyLanes = hn::MaxLanes(KeyTag());
constexpr int kVectorsAtOnce = kKeyLanes == 8 ? 2 : 4;

std::size_t PackedBytes(int tokens, int dim) { return sizeof(float) * tokens * dim; }

void Pack(const HeadShape& shape, const PackedHead& head, int begin, int end) {
  float* keys = reinterpret_cast<float*>(head.packed_keys);
  float* values = reinterpret_cast<float*>(head.packed_values);
  with_lanes_dividing(shape.key_dim, [&](auto d) HWY_ATTR {
    constexpr int kLanes = hn::MaxLanes(d);
    for (int i = begin; i < end; ++i) {
      float* column = keys + std::ptrdiff_t{i / kKeyGroup} * kKeyGroup * shape.key_dim + i % kKeyGroup;
      for (int c = 0; c < shape.key_dim; c += kLanes) {
        float lane[kLanes];
        hn::StoreU(load_half(d, head.keys + std::ptrdiff_t{i} * shape.key_dim + c), d, lane);
        for (int x = 0; x < kLanes; ++x) column[(c + x) * kKeyGroup] = lane[x];
      }
    }
  });
  with_lanes_dividing(shape.value_dim, [&](auto d) HWY_ATTR {
    constexpr int kLanes = hn::MaxLanes(d);
    const std::ptrdiff_t last = std::ptrdiff_t{end} * shape.value_dim;
    for (std::ptrdiff_t i = std::ptrdiff_t{begin} * shape.value_dim; i < last; i += kLanes)
      hn::StoreU(load_half(d, head.values + i), d, values + i);
  });
}

// Logits of kRows rows over kVectors vectors of keys. query: [dim][kRows]; keys: [dim][kKeyGroup] per group.
template <int kRows, class D = KeyTag, class V = hn::Vec<D>>
HWY_INLINE void logits_of(const float* query, const float* keys, int dim, float* out, std::size_t row_floats) {
  const D d;
  for (int first = 0; first < kKeyBlock; first += kVectorsAtOnce * kKeyLanes) {
    V sums[kRows][kVectorsAtOnce];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectorsAtOnce; ++v) sums[r][v] = hn::Zero(d);
    const float* base[kVectorsAtOnce];
    for (int v = 0; v < kVectorsAtOnce; ++v) {
      const int key = first + v * kKeyLanes;
      base[v] = keys + std::ptrdiff_t{key / kKeyGroup} * kKeyGroup * dim + key % kKeyGroup;
    }
    for (int c = 0; c < dim; ++c) {
      V key[kVectorsAtOnce];
      for (int v = 0; v < kVectorsAtOnce; ++v) key[v] = hn::LoadU(d, base[v] + c * kKeyGroup);
      for (int r = 0; r < kRows; ++r) {
        const V q = hn::Set(d, query[c * kRows + r]);
        for (int v = 0; v < kVectorsAtOnce; ++v) sums[r][v] = hn::MulAdd(q, key[v], sums[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectorsAtOnce; ++v) hn::StoreU(sums[r][v], d, out + r * row_floats + first + v * kKeyLanes);
  }
}

// acc[row][c ..) += sum over the block's keys of p[row][key] * values[key][c ..).
template <int kRows, int kVectors, class D, class V = hn::Vec<D>>
HWY_INLINE void values_of(D d, const float* p, std::size_t row_floats, const float* values, int dim, int c,
                          float* acc) {
  constexpr int kLanes = hn::MaxLanes(d);
  V sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::LoadU(d, acc + r * dim + c + v * kLanes);
  for (int key = 0; key < kKeyBlock; ++key) {
    V value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = hn::LoadU(d, values + key * dim + c + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, p[r * row_floats + key]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(weight, value[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], d, acc + r * dim + c + v * kLanes);
}

// Calls f(integral constant rows, first row) over [0, n) in nearly equal parts of at most kRowsAtOnce.
template <class F>
HWY_INLINE void for_row_parts(int n, F f) {
  int row = 0;
  for (int parts = (n + kRowsAtOnce - 1) / kRowsAtOnce; parts > 0; --parts) {
    const int rows = (n - row + parts - 1) / parts;
    switch (rows) {
      case 6:
        f(std::integral_constant<int, 6>(), row);
        break;
      case 5:
        f(std::integral_constant<int, 5>(), row);
        break;
      case 4:
        f(std::integral_constant<int, 4>(), row);
        break;
      case 3:
        f(std::integral_constant<int, 3>(), row);
        break;
      case 2:
        f(std::integral_constant<int, 2>(), row);
        break;
      default:
        f(std::integral_constant<int, 1>(), row);
        break;
    }
    row += rows;
  }
}

// Turns logits (in units of log 2) into exp(logit - max) and returns 1 / sum.
float softmax_row(float* row, int n) {
  const KeyTag d;
  auto top = hn::LoadU(d, row);
  for (int i = kKeyLanes; i < n; i += kKeyLanes) top = hn::Max(top, hn::LoadU(d, row + i));
  top = hn::MaxOfLanes(d, top);
  auto sum = hn::Zero(d);
  for (int i = 0; i < n; i += kKeyLanes) {
    const auto e = exp2_of(d, hn::Sub(hn::LoadU(d, row + i), top));
    hn::StoreU(e, d, row + i);
    sum = hn::Add(sum, e);
  }
  return 1.0f / hn::GetLane(hn::SumOfLanes(d, sum));
}

// sums[key] += sum over rows, in order, of p[row][key] * weight[row].
void add_columns(const float* p, std::size_t row_floats, const float* weight, int rows, float* sums) {
  const KeyTag d;
  for (int key = 0; key < kKeyBlock; key += 2 * kKeyLanes) {
    auto sum0 = hn::LoadU(d, sums + key), sum1 = hn::LoadU(d, sums + key + kKeyLanes);
    for (int r = 0; r < rows; ++r) {
      const auto w = hn::Set(d, weight[r]);
      sum0 = hn::MulAdd(hn::LoadU(d, p + r * row_floats + key), w, sum0);
      sum1 = hn::MulAdd(hn::LoadU(d, p + r * row_floats + key + kKeyLanes), w, sum1);
    }
    hn::StoreU(sum0, d, sums + key);
    hn::StoreU(sum1, d, sums + key + kKeyLanes);
  }
}

// sums[key] += group * sum over queries, in order, of (mean over the group of p[row][key] inverse[row])^power * weight.
void add_column_powers(const float* p, std::size_t row_floats, const float* inverse, int rows, int group, int power,
                       const float* weights, float* sums) {
  const hn::CappedTag<float, kKeyLanes> d;
  for (int key = 0; key < kKeyBlock; key += static_cast<int>(hn::Lanes(d))) {
    auto sum = hn::LoadU(d, sums + key);
    for (int row = 0; row < rows; row += group) {
      auto mean = hn::Zero(d);
      for (int r = row; r < row + group; ++r)
        mean = hn::MulAdd(hn::LoadU(d, p + r * row_floats + key), hn::Set(d, inverse[r]), mean);
      mean = hn::Mul(mean, hn::Set(d, 1.0f / static_cast<float>(group)));
      auto raised = mean;
      for (int i = 1; i < power; ++i) raised = hn::Mul(raised, mean);
      const float weight = weights != nullptr ? weights[row / group] : 1.0f;
      sum = hn::MulAdd(raised, hn::Set(d, weight * static_cast<float>(group)), sum);
    }
    hn::StoreU(sum, d, sums + key);
  }
}

void Stripe(const StripeTask& task) {
  const HeadShape& shape = task.shape;
  const int rows = task.n_rows * shape.group;
  const int key_dim = shape.key_dim, value_dim = shape.value_dim;
  const StripeScratch scratch(task);

  for_row_parts(rows, [&](auto part, int first) HWY_ATTR {
    constexpr int kRows = decltype(part)::value;
    for (int r = 0; r < kRows; ++r) {
      const int row = first + r;
      const float* q =
          task.query + (row / shape.group) * task.query_stride + std::ptrdiff_t{row % shape.group} * key_dim;
      for (int c = 0; c < key_dim; ++c) scratch.query[first * key_dim + c * kRows + r] = q[c] * (task.scale * kLog2E);
    }
  });
  const auto logits = [&](const float* keys, std::size_t column) HWY_ATTR {
    for_row_parts(rows, [&](auto part, int first) HWY_ATTR {
      logits_of<decltype(part)::value>(scratch.query + first * key_dim, keys, key_dim,
                                       scratch.logits + first * task.row_floats + column, task.row_floats);
    });
  };
  const auto values = [&](const float* block, std::size_t column) HWY_ATTR {
    if (task.sums != nullptr && task.score_power > 1) {
      add_column_powers(scratch.logits + column, task.row_floats, scratch.inverse, rows, shape.group, task.score_power,
                        task.row_weights, task.sums + column);
    } else if (task.sums != nullptr)
      add_columns(scratch.logits + column, task.row_floats, scratch.column_weight, rows, task.sums + column);
    with_lanes_dividing(value_dim, [&](auto d) HWY_ATTR {
      constexpr int kLanes = hn::MaxLanes(d);
      for_row_parts(rows, [&](auto part, int first) HWY_ATTR {
        constexpr int kRows = decltype(part)::value;
        const float* p = scratch.logits + first * task.row_floats + column;
        float* acc = scratch.acc + first * value_dim;
        int c = 0;
        for (; c + kVectorsAtOnce * kLanes <= value_dim; c += kVectorsAtOnce * kLanes)
          values_of<kRows, kVectorsAtOnce>(d, p, task.row_floats, block, value_dim, c, acc);
        for (; c < value_dim; c += kLanes) values_of<kRows, 1>(d, p, task.row_floats, block, value_dim, c, acc);
      });
    });
  };

  PastBlocks past(task, scratch.past_block);
  const int visible = task.first_row + task.n_rows;
  const float* packed_keys = reinterpret_cast<const float*>(task.head.packed_keys);
  const float* packed_values = reinterpret_cast<const float*>(task.head.packed_values);
  while (past.next()) {
    past.pack_keys(kKeyGroup);
    logits(past.packed_keys(), past.column());
    for (int row = 0; row < rows; ++row)
      std::fill_n(scratch.logits + row * task.row_floats + past.column() + past.tokens(), kKeyBlock - past.tokens(),
                  kMasked);
  }
  const std::size_t buffer = past.total_columns();
  for (int key = 0; key < visible; key += kKeyBlock) logits(packed_keys + std::ptrdiff_t{key} * key_dim, buffer + key);

  const int columns = static_cast<int>(buffer) + padded(visible);
  for (int row = 0; row < rows; ++row) {
    float* l = scratch.logits + row * task.row_floats;
    const int seen = task.first_row + row / shape.group + 1;
    std::fill(l + buffer + seen, l + columns, kMasked);
    scratch.inverse[row] = softmax_row(l, columns);
    scratch.column_weight[row] =
        scratch.inverse[row] * (task.row_weights != nullptr ? task.row_weights[row / shape.group] : 1.0f);
  }

  std::fill_n(scratch.acc, std::ptrdiff_t{rows} * value_dim, 0.0f);
  past.restart();
  while (past.next()) values(past.values(), past.column());
  for (int key = 0; key < visible; key += kKeyBlock)
    values(packed_values + std::ptrdiff_t{key} * value_dim, buffer + key);
  for (int row = 0; row < rows; ++row) {
    float* out = task.out + (row / shape.group) * task.out_stride + std::ptrdiff_t{row % shape.group} * value_dim;
    for (int c = 0; c < value_dim; ++c) out[c] = scratch.acc[row * value_dim + c] * scratch.inverse[row];
  }
}

PrefillKernels PrefillTable() { return {8, &PackedBytes, &StripeScratch::floats, &Pack, &Stripe, true}; }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(PrefillTable);
PrefillKernels highway_prefill_kernels() { return HWY_DYNAMIC_DISPATCH(PrefillTable)(); }

}  // namespace qevict
#endif
