// A plain prefill, layer by layer, that keeps every layer's keys, values and last queries.
#include <algorithm>

#include "base/check.h"
#include "engine/model_parts.h"
#include "eval/codec_error.h"
#include "kernels/attention.h"

namespace qevict {
namespace {

constexpr int kChunk = 512;

// Exact attention over the tokens so far, uncompressed.
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

std::vector<float> floats_of(const Half* halves, std::size_t n) {
  std::vector<float> result(n);
  std::transform(halves, halves + n, result.begin(), to_float);
  return result;
}

}  // namespace

Result<AttentionSet> capture_attention(const Model& model, std::span<const Token> tokens, int n_rows, int n_threads) {
  const Transformer& transformer = *model.parts().transformer;
  const ModelShape& shape = transformer.shape();
  const auto n = tokens.size(), width = static_cast<std::size_t>(shape.n_embd);
  if (n < 32 || static_cast<int>(n) > shape.n_ctx_train || n_rows < 1 || static_cast<std::size_t>(n_rows) > n) {
    return invalid("{} tokens cannot be captured: give 32 to {}", n, shape.n_ctx_train);
  }
  Result<std::unique_ptr<Runner>> runner = Runner::create(transformer, n_threads, kChunk);
  if (!runner) return runner.error();
  std::vector<float> hidden(n * width);
  if (Result<void> embedded = (*runner)->embed(tokens, hidden); !embedded) return embedded.error();
  CapturedLayer captured(shape, static_cast<int>(n));
  AttentionSet set{.name = "captured", .rope = shape.rope, .samples = {}};
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    captured.begin();
    for (std::size_t at = 0; at < n; at += kChunk) {
      const std::size_t rows = std::min<std::size_t>(kChunk, n - at);
      captured.layer().next_chunk(static_cast<int>(rows));
      Result<void> run = (*runner)->layer(layer, std::span(hidden).subspan(at * width, rows * width),
                                          static_cast<std::int32_t>(at), false, captured);
      if (!run) return run.error();
    }
    const int group = shape.n_heads / shape.n_kv_heads;
    for (int h = 0; h < shape.n_kv_heads; ++h) {
      AttentionSample sample{.key_dim = shape.head_dim, .value_dim = shape.head_dim};
      sample.keys = floats_of(captured.layer().keys(h), n * dim);
      sample.values = floats_of(captured.layer().values(h), n * dim);
      for (std::size_t row = n - static_cast<std::size_t>(n_rows); row < n; ++row)
        for (int g = 0; g < group; ++g) {
          const std::size_t from =
              (row * static_cast<std::size_t>(shape.n_heads) + static_cast<std::size_t>(h * group + g)) * dim;
          for (std::size_t c = 0; c < dim; ++c)
            sample.queries.push_back(captured.queries()[from + c] * shape.attention_scale);
        }
      set.samples.push_back(std::move(sample));
    }
  }
  return set;
}

}  // namespace qevict
