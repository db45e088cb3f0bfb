// In Highway, for all targets: only the sums of blocks and what they add are ours.
#include "model/matrix.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/matrix.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"

#ifndef QEVICT_MODEL_MATRIX_ONCE
#define QEVICT_MODEL_MATRIX_ONCE
namespace qevict {
namespace {

constexpr int kBlock = 32;  // weights of a block of Q4_0 and Q4_1

struct OffsetsTask {
  const float* offsets;  // [n_blocks][n_out]
  const float* x;        // rows of n_blocks * kBlock
  float* y;              // rows of n_out, added to
  std::size_t x_stride, y_stride;
  int n_out, n_blocks;
};

}  // namespace
}  // namespace qevict
#endif

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;

// sums[block] of one row of x.
void SumBlocks(const float* x, int n_blocks, float* sums) {
  const hn::CappedTag<float, 8> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int b = 0; b < n_blocks; ++b, x += kBlock) {
    auto sum = hn::LoadU(d, x);
    for (int i = lanes; i < kBlock; i += lanes) sum = hn::Add(sum, hn::LoadU(d, x + i));
    sums[b] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// y[t][row ..] of kTokens tokens and kVectors vectors of rows. Every output adds its blocks in order, however rows and
// tokens are cut.
template <int kTokens, int kVectors, class D>
HWY_INLINE void AddTile(D d, const OffsetsTask& task, const float* sums, int token, int row) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  hn::Vec<D> y[kTokens][kVectors];
  for (int t = 0; t < kTokens; ++t)
    for (int v = 0; v < kVectors; ++v)
      y[t][v] = hn::LoadU(d, task.y + static_cast<std::size_t>(token + t) * task.y_stride + row + v * lanes);
  const float* offsets = task.offsets + row;
  for (int b = 0; b < task.n_blocks; ++b, offsets += task.n_out) {
    hn::Vec<D> offset[kVectors];
    for (int v = 0; v < kVectors; ++v) offset[v] = hn::LoadU(d, offsets + v * lanes);
    for (int t = 0; t < kTokens; ++t) {
      const auto sum = hn::Set(d, sums[t * task.n_blocks + b]);
      for (int v = 0; v < kVectors; ++v) y[t][v] = hn::MulAdd(sum, offset[v], y[t][v]);
    }
  }
  for (int t = 0; t < kTokens; ++t)
    for (int v = 0; v < kVectors; ++v)
      hn::StoreU(y[t][v], d, task.y + static_cast<std::size_t>(token + t) * task.y_stride + row + v * lanes);
}

template <int kTokens>
void AddRows(const OffsetsTask& task, const float* sums, int token, int begin, int end) {
  const DF d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int row = begin;
  for (; row + 4 * lanes <= end; row += 4 * lanes) AddTile<kTokens, 4>(d, task, sums, token, row);
  for (; row + lanes <= end; row += lanes) AddTile<kTokens, 1>(d, task, sums, token, row);
  for (; row < end; ++row) AddTile<kTokens, 1>(hn::CappedTag<float, 1>(), task, sums, token, row);
}

// Tokens [begin, end), rows [first, last).
void AddOffsets(const OffsetsTask& task, int begin, int end, int first, int last) {
  constexpr int kTokens = 4;
  thread_local std::vector<float> sums;
  sums.resize(std::max(sums.size(), static_cast<std::size_t>(kTokens) * task.n_blocks));
  for (int token = begin; token < end;) {
    const int n = std::min(kTokens, end - token);
    for (int t = 0; t < n; ++t)
      SumBlocks(task.x + static_cast<std::size_t>(token + t) * task.x_stride, task.n_blocks,
                sums.data() + t * task.n_blocks);
    if (n == kTokens) {
      AddRows<kTokens>(task, sums.data(), token, first, last);
    } else {
      for (int t = 0; t < n; ++t) AddRows<1>(task, sums.data() + t * task.n_blocks, token + t, first, last);
    }
    token += n;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {
namespace {

HWY_EXPORT(AddOffsets);

// src: y, offsets, x; the result is y itself. One token is cut by rows, many are cut by tokens.
void add_offsets(ggml_tensor* result, const ggml_tensor*, const ggml_tensor* offsets, const ggml_tensor* x, int thread,
                 int n_threads, void*) {
  const OffsetsTask task{static_cast<const float*>(offsets->data),
                         static_cast<const float*>(x->data),
                         static_cast<float*>(result->data),
                         x->nb[1] / sizeof(float),
                         result->nb[1] / sizeof(float),
                         static_cast<int>(offsets->ne[0]),
                         static_cast<int>(offsets->ne[1])};
  const int n_tokens = static_cast<int>(x->ne[1]);
  const auto share = [&](int n, int piece, int i) { return std::min(n, (n / piece * i / n_threads) * piece); };
  constexpr int kRows = 64, kTokens = 4;
  const bool by_rows = n_tokens < kTokens * n_threads;
  const int n = by_rows ? task.n_out : n_tokens, piece = by_rows ? kRows : kTokens;
  const int begin = share(n, piece, thread), end = thread + 1 == n_threads ? n : share(n, piece, thread + 1);
  if (begin == end) return;
  if (by_rows) {
    HWY_DYNAMIC_DISPATCH(AddOffsets)(task, 0, n_tokens, begin, end);
  } else {
    HWY_DYNAMIC_DISPATCH(AddOffsets)(task, begin, end, 0, task.n_out);
  }
}

}  // namespace

ggml_tensor* multiply(ggml_context* context, const Matrix& matrix, ggml_tensor* x) {
  ggml_tensor* y = ggml_mul_mat(context, matrix.weight, x);
  if (matrix.offsets == nullptr) return y;
  return ggml_map_custom3_inplace(context, y, matrix.offsets, x, &add_offsets, GGML_N_TASKS_MAX, nullptr);
}

void split_q4_1(std::span<const std::byte> q4_1, std::int64_t n_in, std::int64_t n_out, std::span<std::byte> q4_0,
                std::span<float> offsets) {
  // Blocks: d f16 | m f16 | 16 bytes, and d f16 | the same 16 bytes.
  constexpr std::size_t kHalf = sizeof(ggml_fp16_t), kCodes = kBlock / 2;
  constexpr std::size_t kFrom = 2 * kHalf + kCodes, kTo = kHalf + kCodes;
  const std::int64_t n_blocks = n_in / kBlock;
  const auto blocks = static_cast<std::size_t>(n_blocks * n_out);
  QEVICT_CHECK(
      n_in % kBlock == 0 && q4_1.size() == kFrom * blocks && q4_0.size() == kTo * blocks && offsets.size() == blocks,
      "whole blocks, and room for them");
  const std::byte* from = q4_1.data();
  std::byte* to = q4_0.data();
  for (std::int64_t row = 0; row < n_out; ++row) {
    for (std::int64_t b = 0; b < n_blocks; ++b, from += kFrom, to += kTo) {
      ggml_fp16_t d, m;
      std::memcpy(&d, from, kHalf);
      std::memcpy(&m, from + kHalf, kHalf);
      std::memcpy(to, from, kHalf);
      std::memcpy(to + kHalf, from + 2 * kHalf, kCodes);
      offsets[static_cast<std::size_t>(b * n_out + row)] = ggml_fp16_to_fp32(m) + 8.0f * ggml_fp16_to_fp32(d);
    }
  }
}

}  // namespace qevict
#endif
