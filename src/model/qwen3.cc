// Qwen 3 (dense): an RMS norm over each query and key head instead of biases, "NeoX" RoPE.
#include "model/arch.h"

namespace qevict {

void bind_qwen3(WeightLoader& loader, const Hparams& h, Weights& w) {
  bind_ends(loader, h, w);
  for (int layer = 0; layer < h.shape.n_layers; ++layer) {
    LayerWeights& l = w.layers.emplace_back();
    bind_attention(loader, h, layer, l);
    l.q_norm = loader.norm(layer_tensor(layer, "attn_q_norm.weight"), h.shape.head_dim);
    l.k_norm = loader.norm(layer_tensor(layer, "attn_k_norm.weight"), h.shape.head_dim);
    bind_ffn(loader, h, layer, l);
  }
}

ggml_tensor* qwen3_layer(LayerGraph& g, const LayerWeights& w, ggml_tensor* x) {
  LayerGraph::Heads heads = g.heads(w, g.rms_norm(x, w.attn_norm));
  heads.q = g.rope(g.rms_norm(heads.q, w.q_norm));
  heads.k = g.rope(g.rms_norm(heads.k, w.k_norm));
  ggml_tensor* attended = g.linear(w.wo, nullptr, g.attend(heads));
  x = g.add(attended, g.wanted_rows(x));
  return g.add(g.swiglu(w, g.rms_norm(x, w.ffn_norm)), x);
}

}  // namespace qevict
