// Random heads for the kernel tests, and results in a shape that is easy to compare.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/attention.h"
#include "kernels/attention_ref.h"

namespace qevict {

// What a head attends to, with the memory behind it.
struct TestHead {
  HeadShape shape;
  Rope rope;
  std::vector<Half> keys, values;  // all f16 tokens; runs point into it
  std::vector<F16Run> runs;
  std::vector<std::vector<std::byte>> records;
  std::vector<CodeWindow> windows;
  std::vector<std::byte> head_data;
  const CodecRow* codec = nullptr;
  WindowShape window;

  HeadView view() const { return {runs, windows, codec, window, head_data, &rope}; }
};

inline Rope test_rope(int pairs, bool neox, float magnitude = 1.0f) {
  Rope rope{.frequency = {}, .magnitude = magnitude, .neox = neox};
  for (int i = 0; i < pairs; ++i)
    rope.frequency.push_back(static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / pairs)));
  return rope;
}

// n f16 tokens, cut into runs of at most run_tokens; every run starts `misaligned` halves off an aligned place.
inline void add_f16(TestHead& head, int n, int run_tokens, int misaligned, Rng& rng) {
  const int kd = head.shape.key_dim, vd = head.shape.value_dim;
  const int n_runs = (n + run_tokens - 1) / run_tokens;
  constexpr int kGap = 64;
  head.keys.assign(static_cast<std::size_t>(n) * kd + n_runs * kGap + misaligned, {});
  head.values.assign(static_cast<std::size_t>(n) * vd + n_runs * kGap + misaligned, {});
  Half* key = head.keys.data() + misaligned;
  Half* value = head.values.data() + misaligned;
  for (int first = 0; first < n; first += run_tokens) {
    const int tokens = std::min(run_tokens, n - first);
    head.runs.push_back({key, value, tokens, first});
    for (int i = 0; i < tokens * kd; ++i) *key++ = to_half(static_cast<float>(rng.normal()));
    for (int i = 0; i < tokens * vd; ++i) *value++ = to_half(static_cast<float>(rng.normal()));
    key += kGap;
    value += kGap;
  }
}

// n windows of codes; keys have a mean and a deviation per channel. Positions leave gaps, as after evictions.
inline void add_codes(TestHead& head, const CodecRow& codec, int n, int window_tokens, int misaligned, Rng& rng) {
  const int kd = head.shape.key_dim, vd = head.shape.value_dim;
  head.codec = &codec;
  head.window = {window_tokens, kd, vd};
  std::vector<float> mean(kd), deviation(kd);
  for (float& m : mean) m = static_cast<float>(rng.normal());
  for (float& s : deviation) s = 0.3f + std::fabs(static_cast<float>(rng.normal()));
  std::vector<float> keys, values;
  for (int i = 0; i < n * window_tokens; ++i) {
    for (int d = 0; d < kd; ++d) keys.push_back(mean[d] + deviation[d] * static_cast<float>(rng.normal()));
    for (int d = 0; d < vd; ++d) values.push_back(static_cast<float>(rng.normal()));
  }
  head.head_data.resize(codec.head_bytes(head.window));
  if (!head.head_data.empty()) codec.estimate_head(head.window, keys, values, head.head_data);
  int position = 5;
  for (int w = 0; w < n; ++w) {
    const std::size_t bytes = codec.window_bytes(head.window);
    head.records.emplace_back(bytes + misaligned);
    const std::span<std::byte> record(head.records.back().data() + misaligned, bytes);
    EXPECT_TRUE(codec.encode(head.window,
                             std::span<const float>(keys).subspan(std::size_t{1} * w * window_tokens * kd,
                                                                  std::size_t{1} * window_tokens * kd),
                             std::span<const float>(values).subspan(std::size_t{1} * w * window_tokens * vd,
                                                                    std::size_t{1} * window_tokens * vd),
                             head.head_data, record));
    head.windows.push_back({record.data(), position});
    position += window_tokens * (1 + static_cast<int>(rng.below(20) == 0 ? rng.below(400) : 0));
  }
}

inline std::vector<float> random_query(const HeadShape& shape, double size, Rng& rng) {
  std::vector<float> query(static_cast<std::size_t>(shape.group) * shape.key_dim);
  for (float& q : query) q = static_cast<float>(size * rng.normal());
  return query;
}

// One range's result, owned.
struct TestPartial {
  HeadShape shape;
  int n = 0;
  std::vector<float> max, denom, acc;
  std::vector<float> weights;  // [group][n]

  TestPartial(const HeadShape& s, int tokens)
      : shape(s),
        n(tokens),
        max(s.group, -INFINITY),
        denom(s.group),
        acc(static_cast<std::size_t>(s.group) * s.value_dim),
        weights(static_cast<std::size_t>(s.group) * tokens) {}
  PartialView view() { return {max.data(), denom.data(), acc.data()}; }

  std::vector<double> output() const {
    std::vector<double> out;
    for (std::size_t i = 0; i < acc.size(); ++i)
      out.push_back(acc[i] / static_cast<double>(denom[i / shape.value_dim]));
    return out;
  }
  std::vector<double> probabilities() const {
    std::vector<double> p;
    for (std::size_t i = 0; i < weights.size(); ++i) p.push_back(weights[i] / static_cast<double>(denom[i / n]));
    return p;
  }
};

inline TestPartial decode_range(const TestHead& head, TokenRange range, std::span<const float> query, float scale) {
  TestPartial result(head.shape, range.end - range.begin);
  attend_decode(head.shape, head.view(), range, query, scale, result.weights, result.n, result.view());
  return result;
}
inline TestPartial reference_range(const TestHead& head, TokenRange range, std::span<const float> query, float scale) {
  TestPartial result(head.shape, range.end - range.begin);
  attend_decode_reference(head.shape, head.view(), range, query, scale, result.weights, result.n, result.view());
  return result;
}

// A row's name as GoogleTest allows them.
inline std::string test_name(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '-', '_');
  return result;
}

// Root mean square of a - b over that of b.
template <class A, class B>
double relative_error(const A& a, const B& b) {
  double error = 0.0, size = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    error += (a[i] - b[i]) * static_cast<double>(a[i] - b[i]);
    size += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(error / std::max(size, 1e-300));
}

// Largest error of one logit, and of one output channel over the output's root mean square: what one wrong code moves.
struct WorstError {
  double logit = 0.0;
  double output = 0.0;
};
inline WorstError worst_error(const TestPartial& got, const TestPartial& want) {
  WorstError worst;
  for (std::size_t i = 0; i < want.weights.size(); ++i) {
    if (want.weights[i] < 1e-20f) continue;  // far below what any output shows
    const int g = static_cast<int>(i) / want.n;
    const double logit = want.max[g] + std::log(want.weights[i]);
    worst.logit = std::max(worst.logit, std::abs(got.max[g] + std::log(got.weights[i]) - logit));
  }
  const std::vector<double> a = got.output(), b = want.output();
  double square = 0.0;
  for (const double x : b) square += x * x / static_cast<double>(b.size());
  for (std::size_t i = 0; i < b.size(); ++i)
    worst.output = std::max(worst.output, std::abs(a[i] - b[i]) / std::sqrt(square));
  return worst;
}

// Runs the body once per target of the machine; the target is reset afterwards.
template <class F>
void for_each_target(F body) {
  const std::string_view before = simd_target();
  for (const std::string_view target : simd_targets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(force_simd_target(target));
    body();
  }
  ASSERT_TRUE(force_simd_target(before));
}

}  // namespace qevict
