#include "model/graph.h"

#include "base/check.h"
#include "base/finite.h"

namespace qevict {
namespace {

const float* floats(const ggml_tensor* tensor) { return static_cast<const float*>(tensor->data); }

bool all_finite(const ggml_tensor* tensor) {
  return qevict::all_finite({floats(tensor), static_cast<std::size_t>(ggml_nelements(tensor))});
}

// sources: q, k and v.
void check_finite(AttentionCall& call, const ggml_tensor* result, int thread) {
  if (thread != 0) return;
  for (int i = 0; i < 3; ++i) call.finite = call.finite && all_finite(result->src[i]);
}

void decode_partial(ggml_tensor* result, int thread, int n_threads, void* user) {
  auto& call = *static_cast<AttentionCall*>(user);
  check_finite(call, result, thread);
  call.attention->decode_partial(call.layer, floats(result->src[0]), floats(result->src[1]), floats(result->src[2]),
                                 thread, n_threads);
}

void decode_merge(ggml_tensor* result, int thread, int n_threads, void* user) {
  auto& call = *static_cast<AttentionCall*>(user);
  call.attention->decode_merge(call.layer, static_cast<float*>(result->data), thread, n_threads);
}

void prefill_store(ggml_tensor* result, int thread, int n_threads, void* user) {
  auto& call = *static_cast<AttentionCall*>(user);
  check_finite(call, result, thread);
  call.attention->prefill_store(call.layer, floats(result->src[1]), floats(result->src[2]), call.n_tokens, thread,
                                n_threads);
}

void prefill_attend(ggml_tensor* result, int thread, int n_threads, void* user) {
  auto& call = *static_cast<AttentionCall*>(user);
  call.attention->prefill_attend(call.layer, floats(result->src[1]), call.n_tokens, static_cast<float*>(result->data),
                                 thread, n_threads);
}

}  // namespace

ggml_tensor* LayerGraph::rms_norm(ggml_tensor* x, ggml_tensor* weight) {
  return ggml_mul(context_, ggml_rms_norm(context_, x, hparams_.rms_epsilon), weight);
}

ggml_tensor* LayerGraph::linear(const Matrix& weight, ggml_tensor* bias, ggml_tensor* x) {
  ggml_tensor* y = multiply(context_, weight, x);
  return bias == nullptr ? y : ggml_add(context_, y, bias);
}

LayerGraph::Heads LayerGraph::heads(const LayerWeights& w, ggml_tensor* x) {
  const ModelShape& shape = hparams_.shape;
  const std::int64_t head_dim = shape.head_dim;
  const std::int64_t n_tokens = x->ne[1];
  if (!w.wqkv) {
    const auto split = [&](ggml_tensor* y, std::int64_t n) {
      return ggml_reshape_3d(context_, y, head_dim, n, n_tokens);
    };
    return {split(linear(w.wq, w.wq_b, x), shape.n_heads), split(linear(w.wk, w.wk_b, x), shape.n_kv_heads),
            split(linear(w.wv, w.wv_b, x), shape.n_kv_heads)};
  }
  ggml_tensor* fused = linear(w.wqkv, w.wqkv_b, x);
  const std::size_t head_bytes = static_cast<std::size_t>(head_dim) * sizeof(float);
  const auto part = [&](std::int64_t first, std::int64_t n) {
    return ggml_view_3d(context_, fused, head_dim, n, n_tokens, head_bytes, fused->nb[1],
                        static_cast<std::size_t>(first) * head_bytes);
  };
  return {part(0, shape.n_heads), part(shape.n_heads, shape.n_kv_heads),
          part(shape.n_heads + shape.n_kv_heads, shape.n_kv_heads)};
}

ggml_tensor* LayerGraph::rope(ggml_tensor* heads) {
  const RopeArguments& a = hparams_.rope;
  return ggml_rope_ext(context_, heads, positions_, rope_factors_, a.n_rot, a.mode, a.n_ctx_orig, a.freq_base,
                       a.freq_scale, a.ext_factor, a.attn_factor, a.beta_fast, a.beta_slow);
}

ggml_tensor* LayerGraph::attend(const Heads& heads) {
  const auto dense = [&](ggml_tensor* x) { return ggml_is_contiguous(x) ? x : ggml_cont(context_, x); };
  ggml_tensor* args[] = {dense(heads.q), dense(heads.k), dense(heads.v)};
  QEVICT_CHECK(args[0]->ne[2] == call_->n_tokens, "the call was made for this graph");
  for (ggml_tensor* arg : args) ggml_build_forward_expand(graph_, arg);
  ggml_tensor* first = ggml_custom_4d(context_, GGML_TYPE_F32, 1, 1, 1, 1, args, 3,
                                      options_.decode ? &decode_partial : &prefill_store, GGML_N_TASKS_MAX, call_);
  // q, k and v again: ggml may reuse the memory of tensors that no later operation names.
  ggml_tensor* then[] = {first, args[0], args[1], args[2]};
  const std::int64_t width = std::int64_t{hparams_.shape.head_dim} * hparams_.shape.n_heads;
  ggml_tensor* out = ggml_custom_4d(context_, GGML_TYPE_F32, width, args[0]->ne[2], 1, 1, then, 4,
                                    options_.decode ? &decode_merge : &prefill_attend, GGML_N_TASKS_MAX, call_);
  ggml_build_forward_expand(graph_, out);
  return wanted_rows(out);
}

ggml_tensor* LayerGraph::wanted_rows(ggml_tensor* x) {
  if (!options_.last_row_only || x->ne[1] == 1) return x;
  return ggml_view_2d(context_, x, x->ne[0], 1, x->nb[1], static_cast<std::size_t>(x->ne[1] - 1) * x->nb[1]);
}

ggml_tensor* LayerGraph::swiglu(const LayerWeights& w, ggml_tensor* x) {
  if (w.ffn_gate_up) return linear(w.ffn_down, w.ffn_down_b, ggml_swiglu(context_, linear(w.ffn_gate_up, nullptr, x)));
  ggml_tensor* up = linear(w.ffn_up, w.ffn_up_b, x);
  ggml_tensor* gate = linear(w.ffn_gate, w.ffn_gate_b, x);
  return linear(w.ffn_down, w.ffn_down_b, ggml_swiglu_split(context_, gate, up));
}

}  // namespace qevict
