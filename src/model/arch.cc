#include "model/arch.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace qevict {
namespace {

constexpr Arch kArchs[] = {
    {"llama", false, &bind_llama, &llama_layer},
    {"qwen2", true, &bind_qwen2, &qwen2_layer},
    {"qwen3", true, &bind_qwen3, &qwen3_layer},
};

}  // namespace

const Arch* find_arch(std::string_view name) {
  const auto* row = std::find_if(std::begin(kArchs), std::end(kArchs), [&](const Arch& a) { return a.name == name; });
  return row == std::end(kArchs) ? nullptr : row;
}

std::vector<std::string_view> supported_architectures() {
  std::vector<std::string_view> names;
  for (const Arch& arch : kArchs) names.push_back(arch.name);
  return names;
}

std::string layer_tensor(int layer, std::string_view name) { return fmt::format("blk.{}.{}", layer, name); }

void bind_ends(WeightLoader& loader, const Hparams& h, Weights& w) {
  w.token_embd = loader.embedding("token_embd.weight", h.shape.n_embd, h.shape.n_vocab);
  w.output_norm = loader.norm("output_norm.weight", h.shape.n_embd);
  w.output = loader.matrix("output.weight", h.shape.n_embd, h.shape.n_vocab, /*optional=*/true);
  if (!w.output) w.output = loader.tied_head(w.token_embd);
}

void bind_attention(WeightLoader& loader, const Hparams& h, int layer, LayerWeights& w) {
  const auto name = [&](std::string_view part) { return layer_tensor(layer, part); };
  const std::int64_t n_embd = h.shape.n_embd;
  const std::int64_t n_q = std::int64_t{h.shape.head_dim} * h.shape.n_heads;
  const std::int64_t n_kv = std::int64_t{h.shape.head_dim} * h.shape.n_kv_heads;
  w.attn_norm = loader.norm(name("attn_norm.weight"), n_embd);
  w.wqkv = loader.matrix(name("attn_qkv.weight"), n_embd, n_q + 2 * n_kv, /*optional=*/true);
  const bool biased =
      loader.has(name("attn_q.bias")) || loader.has(name("attn_k.bias")) || loader.has(name("attn_v.bias"));
  if (!w.wqkv && !biased)
    w.wqkv = loader.stacked(std::vector{name("attn_q.weight"), name("attn_k.weight"), name("attn_v.weight")}, n_embd,
                            std::vector{n_q, n_kv, n_kv});
  if (w.wqkv) {
    w.wqkv_b = loader.bias(name("attn_qkv.bias"), n_q + 2 * n_kv);
  } else {
    w.wq = loader.matrix(name("attn_q.weight"), n_embd, n_q);
    w.wk = loader.matrix(name("attn_k.weight"), n_embd, n_kv);
    w.wv = loader.matrix(name("attn_v.weight"), n_embd, n_kv);
    w.wq_b = loader.bias(name("attn_q.bias"), n_q);
    w.wk_b = loader.bias(name("attn_k.bias"), n_kv);
    w.wv_b = loader.bias(name("attn_v.bias"), n_kv);
  }
  w.wo = loader.matrix(name("attn_output.weight"), n_q, n_embd);
}

void bind_ffn(WeightLoader& loader, const Hparams& h, int layer, LayerWeights& w) {
  const auto name = [&](std::string_view part) { return layer_tensor(layer, part); };
  w.ffn_norm = loader.norm(name("ffn_norm.weight"), h.shape.n_embd);
  const bool biased = loader.has(name("ffn_gate.bias")) || loader.has(name("ffn_up.bias"));
  if (!biased)
    w.ffn_gate_up = loader.stacked(std::vector{name("ffn_gate.weight"), name("ffn_up.weight")}, h.shape.n_embd,
                                   std::vector<std::int64_t>{h.n_ff, h.n_ff});
  if (!w.ffn_gate_up) {
    w.ffn_gate = loader.matrix(name("ffn_gate.weight"), h.shape.n_embd, h.n_ff);
    w.ffn_up = loader.matrix(name("ffn_up.weight"), h.shape.n_embd, h.n_ff);
  }
  w.ffn_down = loader.matrix(name("ffn_down.weight"), h.n_ff, h.shape.n_embd);
}

}  // namespace qevict
