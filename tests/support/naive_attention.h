// The plainest attention there is, for tests: one f32 or f16 cache, softmax in double, all work on thread 0.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/half.h"
#include "model/transformer.h"

namespace qevict::testing {

class NaiveAttention final : public Attention {
 public:
  NaiveAttention(const ModelShape& shape, std::size_t n_positions, bool half_precision)
      : shape_(shape), half_precision_(half_precision), layers_(static_cast<std::size_t>(shape.n_layers)) {
    for (Layer& layer : layers_) {
      layer.keys.resize(n_positions * row());
      layer.values.resize(n_positions * row());
    }
  }

  // Position of the next token, or of the first row of the next chunk.
  void set_position(int position) { position_ = static_cast<std::size_t>(position); }

  void decode_partial(int layer, const float* q, const float* k, const float* v, int thread, int) noexcept override {
    if (thread != 0) return;
    store(layer, k, v, 1);
    query_ = q;
  }
  void decode_merge(int layer, float* out, int thread, int) noexcept override {
    if (thread == 0) attend(layer, query_, position_, out);
  }
  void prefill_store(int layer, const float* k, const float* v, int n_tokens, int thread, int) noexcept override {
    if (thread == 0) store(layer, k, v, static_cast<std::size_t>(n_tokens));
  }
  void prefill_attend(int layer, const float* q, int n_tokens, float* out, int thread,
                      int n_threads) noexcept override {
    const std::size_t width = head_dim() * static_cast<std::size_t>(shape_.n_heads);
    for (int i = thread; i < n_tokens; i += n_threads) {
      const auto token = static_cast<std::size_t>(i);
      attend(layer, q + token * width, position_ + token, out + token * width);
    }
  }

 private:
  struct Layer {
    std::vector<float> keys;  // [position][n_kv_heads][head_dim]
    std::vector<float> values;
  };

  std::size_t head_dim() const { return static_cast<std::size_t>(shape_.head_dim); }
  std::size_t row() const { return head_dim() * static_cast<std::size_t>(shape_.n_kv_heads); }
  float rounded(float value) const { return half_precision_ ? to_float(to_half(value)) : value; }

  void store(int layer, const float* k, const float* v, std::size_t n_tokens) {
    Layer& l = layers_[static_cast<std::size_t>(layer)];
    for (std::size_t i = 0; i < n_tokens * row(); ++i) {
      l.keys[position_ * row() + i] = rounded(k[i]);
      l.values[position_ * row() + i] = rounded(v[i]);
    }
  }

  // Keys 0..position.
  void attend(int layer, const float* q, std::size_t position, float* out) const {
    const Layer& l = layers_[static_cast<std::size_t>(layer)];
    const int group = shape_.n_heads / shape_.n_kv_heads;
    std::vector<double> weights(position + 1);
    for (int head = 0; head < shape_.n_heads; ++head) {
      const std::size_t kv = static_cast<std::size_t>(head / group) * head_dim();
      const float* query = q + static_cast<std::size_t>(head) * head_dim();
      for (std::size_t p = 0; p <= position; ++p) {
        double dot = 0.0;
        for (std::size_t d = 0; d < head_dim(); ++d) dot += double{query[d]} * l.keys[p * row() + kv + d];
        weights[p] = dot * shape_.attention_scale;
      }
      const double most = *std::max_element(weights.begin(), weights.end());
      double sum = 0.0;
      for (double& weight : weights) sum += weight = std::exp(weight - most);
      for (std::size_t d = 0; d < head_dim(); ++d) {
        double value = 0.0;
        for (std::size_t p = 0; p <= position; ++p) value += weights[p] * l.values[p * row() + kv + d];
        out[static_cast<std::size_t>(head) * head_dim() + d] = static_cast<float>(value / sum);
      }
    }
  }

  const ModelShape& shape_;
  bool half_precision_;
  std::vector<Layer> layers_;
  std::size_t position_ = 0;
  const float* query_ = nullptr;
};

}  // namespace qevict::testing
