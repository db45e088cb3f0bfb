// Building blocks of a layer's graph, in ggml's operations and in libllama's order, so that both give the same numbers.
#pragma once

#include <vector>

#include "ggml.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace qevict {

// What the two custom operations of an attention need; must outlive the graph.
struct AttentionCall {
  Attention* attention = nullptr;  // set before each run
  int layer = 0;
  int n_tokens = 0;
  bool finite = true;  // false once q, k or v held a number that is none; set by thread 0
};

// Builds one layer for n_tokens rows. Tensors are [channels][n_tokens], ggml's first dimension first.
class LayerGraph {
 public:
  struct Options {
    bool decode = false;  // decode_partial and decode_merge, else prefill_store and prefill_attend
    bool last_row_only = false;
  };

  LayerGraph(ggml_context* context, ggml_cgraph* graph, const Hparams& hparams, ggml_tensor* positions,
             ggml_tensor* rope_factors, AttentionCall* call, Options options)
      : context_(context),
        graph_(graph),
        hparams_(hparams),
        positions_(positions),
        rope_factors_(rope_factors),
        call_(call),
        options_(options) {}

  struct Heads {
    ggml_tensor* q;  // [head_dim][n_heads][n_tokens]
    ggml_tensor* k;  // [head_dim][n_kv_heads][n_tokens]
    ggml_tensor* v;  // as k
  };

  ggml_tensor* rms_norm(ggml_tensor* x, ggml_tensor* weight);
  ggml_tensor* linear(const Matrix& weight, ggml_tensor* bias, ggml_tensor* x);  // bias may be null
  Heads heads(const LayerWeights& weights, ggml_tensor* x);
  ggml_tensor* rope(ggml_tensor* heads);
  // [head_dim * n_heads][n_tokens], or only the last row if that is all that is wanted.
  ggml_tensor* attend(const Heads& heads);
  // The residual beside attend's result.
  ggml_tensor* wanted_rows(ggml_tensor* x);
  ggml_tensor* swiglu(const LayerWeights& weights, ggml_tensor* x);
  ggml_tensor* add(ggml_tensor* a, ggml_tensor* b) { return ggml_add(context_, a, b); }

 private:
  ggml_context* context_;
  ggml_cgraph* graph_;
  const Hparams& hparams_;
  ggml_tensor* positions_;
  ggml_tensor* rope_factors_;  // may be null
  AttentionCall* call_;
  Options options_;
};

}  // namespace qevict
