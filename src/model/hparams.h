// The numbers of a model file that shape its graph, read and checked: what does not fit is refused here by name.
#pragma once

#include "model/keys.h"
#include "model/transformer.h"

namespace qevict {

// The arguments of ggml_rope_ext, as libllama derives them from a file (llama-context.cpp).
struct RopeArguments {
  int n_rot = 0;
  int mode = 0;  // GGML_ROPE_TYPE_NORMAL or _NEOX
  int n_ctx_orig = 0;
  float freq_base = 10000.0f;
  float freq_scale = 1.0f;
  float ext_factor = 0.0f;
  float attn_factor = 1.0f;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
};

// REQUIRES: head_dim and n_ctx_train are those of the file.
RopeArguments read_rope(Keys& keys, int head_dim, int n_ctx_train, bool neox);

// The same rotation as the cache sees it. factors: [n_rot / 2] frequency factors, or empty.
Rope rope_of(const RopeArguments& arguments, std::span<const float> factors);

struct Hparams {
  ModelShape shape;  // without rope
  int n_ff = 0;
  float rms_epsilon = 0.0f;
  RopeArguments rope;
};

Hparams read_hparams(Keys& keys, bool neox);

}  // namespace qevict
