// Qwen 2 and 2.5: as Llama, with biases on q, k and v (the keys' have large means) and "NeoX" RoPE.
#include "model/arch.h"

namespace qevict {

void bind_qwen2(WeightLoader& loader, const Hparams& h, Weights& w) {
  bind_ends(loader, h, w);
  w.output_b = loader.bias("output.bias", h.shape.n_vocab);
  for (int layer = 0; layer < h.shape.n_layers; ++layer) {
    LayerWeights& l = w.layers.emplace_back();
    bind_attention(loader, h, layer, l);
    bind_ffn(loader, h, layer, l);
  }
}

ggml_tensor* qwen2_layer(LayerGraph& g, const LayerWeights& w, ggml_tensor* x) {
  LayerGraph::Heads heads = g.heads(w, g.rms_norm(x, w.attn_norm));
  heads.q = g.rope(heads.q);
  heads.k = g.rope(heads.k);
  ggml_tensor* attended = g.linear(w.wo, nullptr, g.attend(heads));
  x = g.add(attended, g.wanted_rows(x));
  return g.add(g.swiglu(w, g.rms_norm(x, w.ffn_norm)), x);
}

}  // namespace qevict
