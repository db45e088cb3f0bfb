// One layer of a plain prefill at a time: exact attention, uncompressed, whose keys, values and queries can be read.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "model/transformer.h"

namespace qevict {

inline constexpr int kCaptureChunk = 512;  // tokens of one call of Runner::layer

class CapturedLayer final : public Attention {
 public:
  CapturedLayer(const ModelShape& model, int n_tokens)
      : model_(model),
        layer_({.key_dim = model.head_dim, .value_dim = model.head_dim, .group = model.n_heads / model.n_kv_heads},
               model.n_kv_heads, n_tokens) {}

  PrefillLayer& layer() { return layer_; }
  void begin() {
    layer_.begin({}, false, {});
    queries_.clear();
  }
  // [tokens so far][n_heads][head_dim]
  const std::vector<float>& queries() const { return queries_; }

  void prefill_store(int, const float* k, const float* v, int n_tokens, int thread, int n_threads) noexcept override {
    layer_.store(k, v, n_tokens, thread, n_threads);
  }
  void prefill_attend(int, const float* q, int n_tokens, float* out, int thread, int n_threads) noexcept override {
    const std::ptrdiff_t floats = std::ptrdiff_t{n_tokens} * model_.n_heads * model_.head_dim;
    if (thread == 0) queries_.insert(queries_.end(), q, q + floats);
    layer_.attend(q, n_tokens, model_.attention_scale, out, thread, n_threads);
  }
  void decode_partial(int, const float*, const float*, const float*, int, int) noexcept override {}
  void decode_merge(int, float*, int, int) noexcept override {}

 private:
  const ModelShape& model_;
  PrefillLayer layer_;
  std::vector<float> queries_;
};

// Runs hidden [n][n_embd] through one layer, in place; captured then holds the layer.
inline Result<void> capture_layer(Runner& runner, int layer, std::span<float> hidden, int n_embd,
                                  CapturedLayer& captured) {
  const auto width = static_cast<std::size_t>(n_embd), n = hidden.size() / width;
  captured.begin();
  for (std::size_t at = 0; at < n; at += kCaptureChunk) {
    const std::size_t rows = std::min<std::size_t>(kCaptureChunk, n - at);
    captured.layer().next_chunk(static_cast<int>(rows));
    Result<void> run =
        runner.layer(layer, hidden.subspan(at * width, rows * width), static_cast<std::int32_t>(at), false, captured);
    if (!run) return run;
  }
  return {};
}

// [n] halves of captured keys or values.
inline std::vector<float> floats_of(const Half* halves, std::size_t n) {
  std::vector<float> result(n);
  std::transform(halves, halves + n, result.begin(), to_float);
  return result;
}

}  // namespace qevict
