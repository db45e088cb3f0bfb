// Llama 2 and 3, SmolLM2, Mistral: RMS norms, grouped-query attention with "norm" RoPE, SwiGLU; optional biases and
// Llama 3's frequency factors.
#include "model/arch.h"

namespace qevict {

void bind_llama(WeightLoader& loader, const Hparams& h, Weights& w) {
  bind_ends(loader, h, w);
  w.rope_freqs = loader.frequency_factors("rope_freqs.weight", h.rope.n_rot / 2);
  for (int layer = 0; layer < h.shape.n_layers; ++layer) {
    LayerWeights& l = w.layers.emplace_back();
    bind_attention(loader, h, layer, l);
    l.wo_b = loader.bias(layer_tensor(layer, "attn_output.bias"), h.shape.n_embd);
    bind_ffn(loader, h, layer, l);
    l.ffn_gate_b = loader.bias(layer_tensor(layer, "ffn_gate.bias"), h.n_ff);
    l.ffn_up_b = loader.bias(layer_tensor(layer, "ffn_up.bias"), h.n_ff);
    l.ffn_down_b = loader.bias(layer_tensor(layer, "ffn_down.bias"), h.shape.n_embd);
  }
}

ggml_tensor* llama_layer(LayerGraph& g, const LayerWeights& w, ggml_tensor* x) {
  LayerGraph::Heads heads = g.heads(w, g.rms_norm(x, w.attn_norm));
  heads.q = g.rope(heads.q);
  heads.k = g.rope(heads.k);
  ggml_tensor* attended = g.linear(w.wo, w.wo_b, g.attend(heads));
  x = g.add(attended, g.wanted_rows(x));
  return g.add(g.swiglu(w, g.rms_norm(x, w.ffn_norm)), x);
}

}  // namespace qevict
