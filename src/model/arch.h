// The table of architectures: one row and one file each. Nothing else asks which architecture it has.
#pragma once

#include <string_view>

#include "model/graph.h"

namespace qevict {

struct Arch {
  std::string_view name;  // general.architecture
  bool rope_neox;
  // Names the tensors of the file.
  void (*bind)(WeightLoader& loader, const Hparams& hparams, Weights& weights);
  // One layer, top to bottom: [n_embd][n_tokens] in and out.
  ggml_tensor* (*layer)(LayerGraph& graph, const LayerWeights& weights, ggml_tensor* x);
};

// nullptr if it is not supported.
const Arch* find_arch(std::string_view name);

// Tensors that all rows name alike.
void bind_ends(WeightLoader& loader, const Hparams& hparams, Weights& weights);
void bind_attention(WeightLoader& loader, const Hparams& hparams, int layer, LayerWeights& weights);
void bind_ffn(WeightLoader& loader, const Hparams& hparams, int layer, LayerWeights& weights);
std::string layer_tensor(int layer, std::string_view name);  // "blk.3.attn_q.weight"

// llama.cc
void bind_llama(WeightLoader& loader, const Hparams& hparams, Weights& weights);
ggml_tensor* llama_layer(LayerGraph& graph, const LayerWeights& weights, ggml_tensor* x);
// qwen2.cc
void bind_qwen2(WeightLoader& loader, const Hparams& hparams, Weights& weights);
ggml_tensor* qwen2_layer(LayerGraph& graph, const LayerWeights& weights, ggml_tensor* x);
// qwen3.cc
void bind_qwen3(WeightLoader& loader, const Hparams& hparams, Weights& weights);
ggml_tensor* qwen3_layer(LayerGraph& graph, const LayerWeights& weights, ggml_tensor* x);

}  // namespace qevict
