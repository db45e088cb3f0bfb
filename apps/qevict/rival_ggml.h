// ggml's own attention op, ggml_flash_attn_ext over an f16 cache in llama.cpp's layout: the rival of our kernels.
#pragma once

#include <memory>

#include "qevict/result.h"

namespace qevict::app {

struct AttentionShape {
  int head_dim = 64;
  int group = 3;       // query heads per KV head
  int n_kv_heads = 3;  // of a layer
  int n_layers = 30;
  int n_tokens = 7680;
  int batch = 512;  // query rows at a time in a prefill
  int n_threads = 2;
};

class GgmlAttention {
 public:
  // Errors: the op's result differs from a plain softmax in double precision (output_error tells by how much).
  static Result<std::unique_ptr<GgmlAttention>> create(const AttentionShape& shape);
  ~GgmlAttention();
  GgmlAttention(const GgmlAttention&) = delete;
  GgmlAttention& operator=(const GgmlAttention&) = delete;

  // One query row over n_tokens in every layer, each layer with its own cache. Seconds.
  double decode();
  // A prompt of n_tokens through one layer, batch by batch over the growing cache, causal. Seconds.
  double prefill();
  double output_error() const;  // relative, root mean square; of one head
  double cache_bytes() const;   // that decode() reads

 private:
  struct State;
  explicit GgmlAttention(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace qevict::app
