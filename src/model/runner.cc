#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/finite.h"
#include "model/compute.h"
#include "model/ggml_log.h"
#include "model/loaded_model.h"

namespace qevict {
namespace {

constexpr std::size_t kNodesPerLayer = 64;  // more than any architecture's layer has
constexpr int kMaxThreads = 512;            // ggml's limit

class GgmlRunner final : public Runner {
 public:
  GgmlRunner(const LoadedModel& model, std::unique_ptr<CpuBackend> backend, int max_chunk)
      : model_(model), backend_(std::move(backend)), max_chunk_(max_chunk) {}
  ~GgmlRunner() override {
    if (decode_plan_ != nullptr) ggml_backend_graph_plan_free(backend_->get(), decode_plan_);
  }

  Result<void> prepare();

  Result<void> decode(std::int32_t token, std::int32_t position, Attention& attention,
                      std::span<float> logits) override;
  Result<void> embed(std::span<const std::int32_t> tokens, std::span<float> hidden) override;
  Result<void> layer(int layer, std::span<float> hidden, std::int32_t first_position, bool last_row_only,
                     Attention& attention) override;
  Result<void> layer_of_sequences(int layer, std::span<float> hidden, std::int32_t position,
                                  Attention& attention) override;
  Result<void> head(std::span<const float> hidden, std::span<float> logits) override;
  Result<void> projected_norms(int layer, std::span<const std::span<const float>> values,
                               std::span<const std::span<float>> norms) override;
  Result<void> decode_matmuls() override;
  Result<void> on_all_threads(const Work& work) override;
  std::size_t workspace_bytes() const override;

 private:
  const ModelShape& shape() const { return model_.shape(); }
  std::size_t width() const { return static_cast<std::size_t>(shape().n_embd); }
  Result<void> check_token(std::int32_t token) const;
  Result<void> allocate(ggml_gallocr_ptr& allocator, ggml_cgraph* graph, bool reserve_only);
  ggml_tensor* output_head(ggml_context* context, ggml_tensor* x) const;
  void build_decode();
  void build_head();
  void build_team();
  struct LayerRun {
    Graph graph;
    ggml_tensor* in;
    ggml_tensor* positions;
    ggml_tensor* out;
  };
  LayerRun build_layer(int layer, int n_tokens, bool last_row_only);
  Result<void> run_layer(int layer, std::span<float> hidden, std::span<const std::int32_t> positions,
                         bool last_row_only, Attention& attention);
  Result<void> head_of_rows(std::span<const float> hidden, std::span<float> logits);
  Result<void> projected_norms_of_chunk(int layer, std::span<const std::span<const float>> values,
                                        std::span<const std::span<float>> norms);

  const LoadedModel& model_;
  std::unique_ptr<CpuBackend> backend_;
  int max_chunk_;

  Graph decode_;
  ggml_gallocr_ptr decode_memory_;
  ggml_backend_graph_plan_t decode_plan_ = nullptr;
  std::vector<AttentionCall> decode_calls_;  // one per layer; the graph points to them
  ggml_tensor* decode_token_ = nullptr;
  ggml_tensor* decode_position_ = nullptr;
  ggml_tensor* decode_logits_ = nullptr;

  Graph matmuls_;  // of the decode graph, the same tensors; made when asked for

  Graph head_;
  ggml_gallocr_ptr head_memory_;
  ggml_tensor* head_in_ = nullptr;
  ggml_tensor* head_out_ = nullptr;

  Graph team_;  // a single operation that calls team_work_
  ggml_gallocr_ptr team_memory_;
  const Work* team_work_ = nullptr;

  ggml_gallocr_ptr norms_memory_;

  ggml_gallocr_ptr layer_memory_;  // of the layer graphs, which are built for each call
  AttentionCall layer_call_;
};

ggml_tensor* GgmlRunner::output_head(ggml_context* context, ggml_tensor* x) const {
  const Weights& w = model_.weights();
  x = ggml_mul(context, ggml_rms_norm(context, x, model_.hparams().rms_epsilon), w.output_norm);
  x = multiply(context, w.output, x);
  if (w.output_b != nullptr) x = ggml_add(context, x, w.output_b);
  ggml_set_output(x);
  return x;
}

void GgmlRunner::build_decode() {
  const Weights& w = model_.weights();
  decode_ = Graph::with_room_for(kNodesPerLayer * (w.layers.size() + 1));
  ggml_context* context = decode_.context.get();
  decode_token_ = new_input(context, GGML_TYPE_I32, 1, 1, "token");
  decode_position_ = new_input(context, GGML_TYPE_I32, 1, 1, "position");
  decode_calls_.resize(w.layers.size());
  ggml_tensor* x = ggml_get_rows(context, w.token_embd, decode_token_);
  for (std::size_t layer = 0; layer < w.layers.size(); ++layer) {
    decode_calls_[layer] = {.layer = static_cast<int>(layer), .n_tokens = 1};
    LayerGraph graph(context, decode_.graph, model_.hparams(), decode_position_, w.rope_freqs, &decode_calls_[layer],
                     {.decode = true});
    x = model_.arch().layer(graph, w.layers[layer], x);
  }
  decode_logits_ = output_head(context, x);
  ggml_build_forward_expand(decode_.graph, decode_logits_);
}

void GgmlRunner::build_head() {
  head_ = Graph::with_room_for(kNodesPerLayer);
  head_in_ = new_input(head_.context.get(), GGML_TYPE_F32, shape().n_embd, 1, "hidden");
  head_out_ = output_head(head_.context.get(), head_in_);
  ggml_build_forward_expand(head_.graph, head_out_);
}

void GgmlRunner::build_team() {
  constexpr auto call = [](ggml_tensor*, int thread, int n_threads, void* runner) {
    (*static_cast<const GgmlRunner*>(runner)->team_work_)(thread, n_threads);
  };
  team_ = Graph::with_room_for(2);
  ggml_context* context = team_.context.get();
  ggml_tensor* in = new_input(context, GGML_TYPE_F32, 1, 1, "work");
  ggml_tensor* out = ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, &in, 1, call, GGML_N_TASKS_MAX, this);
  ggml_set_output(out);
  ggml_build_forward_expand(team_.graph, out);
}

GgmlRunner::LayerRun GgmlRunner::build_layer(int layer, int n_tokens, bool last_row_only) {
  const Weights& w = model_.weights();
  layer_call_.layer = layer;
  layer_call_.n_tokens = n_tokens;
  layer_call_.finite = true;
  LayerRun run{Graph::with_room_for(kNodesPerLayer), nullptr, nullptr, nullptr};
  ggml_context* context = run.graph.context.get();
  run.in = new_input(context, GGML_TYPE_F32, shape().n_embd, n_tokens, "hidden");
  run.positions = new_input(context, GGML_TYPE_I32, n_tokens, 1, "positions");
  LayerGraph graph(context, run.graph.graph, model_.hparams(), run.positions, w.rope_freqs, &layer_call_,
                   {.last_row_only = last_row_only});
  run.out = model_.arch().layer(graph, w.layers[static_cast<std::size_t>(layer)], run.in);
  ggml_set_output(run.out);
  ggml_build_forward_expand(run.graph.graph, run.out);
  return run;
}

Result<void> GgmlRunner::allocate(ggml_gallocr_ptr& allocator, ggml_cgraph* graph, bool reserve_only) {
  if (!allocator) allocator.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_->get())));
  const bool done =
      reserve_only ? ggml_gallocr_reserve(allocator.get(), graph) : ggml_gallocr_alloc_graph(allocator.get(), graph);
  if (done) return {};
  return error_of(Error::Kind::internal, "no memory for the compute buffers: {}", take_log_errors());
}

Result<void> GgmlRunner::prepare() {
  build_decode();
  if (auto done = allocate(decode_memory_, decode_.graph, false); !done) return done;
  decode_plan_ = ggml_backend_graph_plan_create(backend_->get(), decode_.graph);
  build_head();
  if (auto done = allocate(head_memory_, head_.graph, false); !done) return done;
  build_team();
  if (auto done = allocate(team_memory_, team_.graph, false); !done) return done;
  return allocate(layer_memory_, build_layer(0, max_chunk_, false).graph.graph, true);
}

Result<void> GgmlRunner::check_token(std::int32_t token) const {
  if (token >= 0 && token < shape().n_vocab) return {};
  return invalid("token {} is not in the vocabulary: expected 0 to {}", token, shape().n_vocab - 1);
}

Result<void> GgmlRunner::decode(std::int32_t token, std::int32_t position, Attention& attention,
                                std::span<float> logits) {
  QEVICT_CHECK(logits.size() == static_cast<std::size_t>(shape().n_vocab), "one logit per token of the vocabulary");
  if (auto checked = check_token(token); !checked) return checked;
  std::memcpy(decode_token_->data, &token, sizeof token);
  std::memcpy(decode_position_->data, &position, sizeof position);
  for (AttentionCall& call : decode_calls_) {
    call.attention = &attention;
    call.finite = true;
  }
  const ggml_status status = decode_plan_ != nullptr ? ggml_backend_graph_plan_compute(backend_->get(), decode_plan_)
                                                     : ggml_backend_graph_compute(backend_->get(), decode_.graph);
  if (auto done = CpuBackend::result_of(status); !done) return done;
  for (const AttentionCall& call : decode_calls_)
    if (!call.finite)
      return error_of(Error::Kind::internal,
                      "layer {} computed queries, keys or values that are not finite numbers (position {})", call.layer,
                      position);
  std::memcpy(logits.data(), decode_logits_->data, logits.size_bytes());
  if (!all_finite(logits))
    return error_of(Error::Kind::internal, "logits are not finite numbers after layer {} (position {})",
                    shape().n_layers - 1, position);
  return {};
}

Result<void> GgmlRunner::embed(std::span<const std::int32_t> tokens, std::span<float> hidden) {
  QEVICT_CHECK(hidden.size() == tokens.size() * width(), "one row per token");
  const ggml_type type = model_.weights().token_embd->type;
  const std::size_t row_bytes = ggml_row_size(type, shape().n_embd);
  const ggml_to_float_t to_float = ggml_get_type_traits(type)->to_float;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (auto checked = check_token(tokens[i]); !checked) return checked;
    const std::byte* row = model_.embedding_data() + static_cast<std::size_t>(tokens[i]) * row_bytes;
    float* out = hidden.data() + i * width();
    if (type == GGML_TYPE_F32) {
      std::memcpy(out, row, row_bytes);
    } else {
      to_float(row, out, shape().n_embd);
    }
  }
  return {};
}

Result<void> GgmlRunner::layer(int layer, std::span<float> hidden, std::int32_t first_position, bool last_row_only,
                               Attention& attention) {
  std::vector<std::int32_t> positions(hidden.size() / width());
  std::iota(positions.begin(), positions.end(), first_position);
  return run_layer(layer, hidden, positions, last_row_only, attention);
}

Result<void> GgmlRunner::layer_of_sequences(int layer, std::span<float> hidden, std::int32_t position,
                                            Attention& attention) {
  return run_layer(layer, hidden, std::vector<std::int32_t>(hidden.size() / width(), position), false, attention);
}

Result<void> GgmlRunner::run_layer(int layer, std::span<float> hidden, std::span<const std::int32_t> positions,
                                   bool last_row_only, Attention& attention) {
  const std::size_t n_tokens = positions.size();
  QEVICT_CHECK(n_tokens > 0 && hidden.size() == n_tokens * width(), "whole rows");
  QEVICT_CHECK(n_tokens <= static_cast<std::size_t>(max_chunk_), "a chunk is at most max_chunk rows");
  QEVICT_CHECK(layer >= 0 && layer < shape().n_layers, "a layer of the model");
  const LayerRun run = build_layer(layer, static_cast<int>(n_tokens), last_row_only);
  if (auto done = allocate(layer_memory_, run.graph.graph, false); !done) return done;
  std::memcpy(run.in->data, hidden.data(), hidden.size_bytes());
  std::memcpy(run.positions->data, positions.data(), positions.size_bytes());
  layer_call_.attention = &attention;
  if (auto done = backend_->compute(run.graph.graph); !done) return done;
  const std::span<float> wanted = last_row_only ? hidden.last(width()) : hidden;
  std::memcpy(wanted.data(), run.out->data, wanted.size_bytes());
  if (!layer_call_.finite || !all_finite(wanted))
    return error_of(Error::Kind::internal, "layer {} computed values that are not finite numbers (positions {} to {})",
                    layer, positions.front(), positions.back());
  return {};
}

Result<void> GgmlRunner::decode_matmuls() {
  if (!matmuls_.context) {
    matmuls_ = Graph::with_room_for(kNodesPerLayer * (model_.weights().layers.size() + 1));
    for (int i = 0; i < ggml_graph_n_nodes(decode_.graph); ++i) {
      ggml_tensor* node = ggml_graph_node(decode_.graph, i);
      if (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MAP_CUSTOM3) ggml_graph_add_node(matmuls_.graph, node);
    }
  }
  return backend_->compute(matmuls_.graph);
}

Result<void> GgmlRunner::projected_norms(int layer, std::span<const std::span<const float>> values,
                                         std::span<const std::span<float>> norms) {
  const auto dim = static_cast<std::size_t>(shape().head_dim),
             n_kv_heads = static_cast<std::size_t>(shape().n_kv_heads);
  QEVICT_CHECK(values.size() == n_kv_heads && norms.size() == n_kv_heads, "values and norms of every KV head");
  std::size_t most = 0;
  for (std::size_t h = 0; h < n_kv_heads; ++h) {
    QEVICT_CHECK(values[h].size() == norms[h].size() * dim, "one norm per value");
    most = std::max(most, norms[h].size());
  }
  const auto chunk = static_cast<std::size_t>(max_chunk_);
  for (std::size_t begin = 0; begin < most; begin += chunk) {
    std::vector<std::span<const float>> some_values;
    std::vector<std::span<float>> some_norms;
    for (std::size_t h = 0; h < n_kv_heads; ++h) {
      const std::size_t first = std::min(begin, norms[h].size()), n = std::min(chunk, norms[h].size() - first);
      some_values.push_back(values[h].subspan(first * dim, n * dim));
      some_norms.push_back(norms[h].subspan(first, n));
    }
    if (auto done = projected_norms_of_chunk(layer, some_values, some_norms); !done) return done;
  }
  for (const std::span<float> of_head : norms) {
    if (!all_finite(of_head))
      return error_of(Error::Kind::internal, "layer {}: the projection of a value is not finite", layer);
  }
  return {};
}

// As projected_norms(), of at most max_chunk values a KV head. The projection is expanded to f32 in the graph itself.
Result<void> GgmlRunner::projected_norms_of_chunk(int layer, std::span<const std::span<const float>> values,
                                                  std::span<const std::span<float>> norms) {
  const int group = shape().n_heads / shape().n_kv_heads;
  const auto dim = static_cast<std::size_t>(shape().head_dim);
  Graph graph = Graph::with_room_for(4 + 8 * static_cast<std::size_t>(shape().n_heads));
  ggml_context* context = graph.context.get();
  const TensorEntry& entry = model_.output_projection(layer);
  ggml_tensor* projection =
      ggml_new_tensor_2d(context, entry.type, std::int64_t{shape().n_heads} * shape().head_dim, shape().n_embd);
  projection->data = const_cast<std::byte*>(model_.data(entry));  // where the file is mapped; only read
  if (entry.type != GGML_TYPE_F32) projection = ggml_cast(context, projection, GGML_TYPE_F32);
  std::vector<ggml_tensor*> in(norms.size()), sums(norms.size());
  for (std::size_t h = 0; h < norms.size(); ++h) {
    if (norms[h].empty()) continue;
    in[h] = new_input(context, GGML_TYPE_F32, shape().head_dim, std::ssize(norms[h]), "values");
    for (std::size_t g = 0; g < static_cast<std::size_t>(group); ++g) {
      const std::size_t head = h * static_cast<std::size_t>(group) + g;
      ggml_tensor* part = ggml_view_2d(context, projection, shape().head_dim, shape().n_embd, projection->nb[1],
                                       head * dim * sizeof(float));
      ggml_tensor* norm = ggml_sum_rows(context, ggml_abs(context, ggml_mul_mat(context, part, in[h])));
      sums[h] = sums[h] == nullptr ? norm : ggml_add(context, sums[h], norm);
    }
    ggml_set_output(sums[h]);
    ggml_build_forward_expand(graph.graph, sums[h]);
  }
  if (auto done = allocate(norms_memory_, graph.graph, false); !done) return done;
  for (std::size_t h = 0; h < norms.size(); ++h)
    if (in[h] != nullptr) std::memcpy(in[h]->data, values[h].data(), values[h].size_bytes());
  if (auto done = backend_->compute(graph.graph); !done) return done;
  for (std::size_t h = 0; h < norms.size(); ++h) {
    const auto* sum = sums[h] == nullptr ? nullptr : static_cast<const float*>(sums[h]->data);
    for (std::size_t i = 0; i < norms[h].size(); ++i) norms[h][i] = sum[i] / static_cast<float>(group);
  }
  return {};
}

Result<void> GgmlRunner::on_all_threads(const Work& work) {
  team_work_ = &work;
  return backend_->compute(team_.graph);
}

Result<void> GgmlRunner::head(std::span<const float> hidden, std::span<float> logits) {
  QEVICT_CHECK(logits.size() / static_cast<std::size_t>(shape().n_vocab) * width() == hidden.size(),
               "one logit per row and token of the vocabulary");
  if (hidden.size() > width()) return head_of_rows(hidden, logits);
  std::memcpy(head_in_->data, hidden.data(), hidden.size_bytes());
  if (auto done = backend_->compute(head_.graph); !done) return done;
  std::memcpy(logits.data(), head_out_->data, logits.size_bytes());
  if (!all_finite(logits)) return error_of(Error::Kind::internal, "logits are not finite numbers");
  return {};
}

Result<void> GgmlRunner::head_of_rows(std::span<const float> hidden, std::span<float> logits) {
  const std::size_t n_rows = hidden.size() / width();
  QEVICT_CHECK(n_rows <= static_cast<std::size_t>(max_chunk_), "at most max_chunk rows");
  Graph graph = Graph::with_room_for(kNodesPerLayer);
  ggml_tensor* in =
      new_input(graph.context.get(), GGML_TYPE_F32, shape().n_embd, static_cast<std::int64_t>(n_rows), "hidden");
  ggml_tensor* out = output_head(graph.context.get(), in);
  ggml_build_forward_expand(graph.graph, out);
  if (auto done = allocate(layer_memory_, graph.graph, false); !done) return done;
  std::memcpy(in->data, hidden.data(), hidden.size_bytes());
  if (auto done = backend_->compute(graph.graph); !done) return done;
  std::memcpy(logits.data(), out->data, logits.size_bytes());
  if (!all_finite(logits)) return error_of(Error::Kind::internal, "logits are not finite numbers");
  return {};
}

std::size_t GgmlRunner::workspace_bytes() const {
  std::size_t bytes = decode_.bytes + head_.bytes + team_.bytes + ggml_tensor_overhead() * kNodesPerLayer;
  for (const ggml_gallocr_ptr* memory : {&decode_memory_, &head_memory_, &team_memory_, &norms_memory_, &layer_memory_})
    if (*memory) bytes += ggml_gallocr_get_buffer_size(memory->get(), 0);
  return bytes;
}

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(const Transformer& model, int n_threads, int max_chunk) {
  if (n_threads < 1 || n_threads > kMaxThreads)
    return invalid("threads must be 1 to {}, got {}", kMaxThreads, n_threads);
  if (max_chunk < 1) return invalid("the prefill chunk must be at least 1 token, got {}", max_chunk);
  auto backend = CpuBackend::create(n_threads);
  if (!backend) return std::move(backend).error();
  auto runner = std::make_unique<GgmlRunner>(static_cast<const LoadedModel&>(model), std::move(*backend), max_chunk);
  if (auto prepared = runner->prepare(); !prepared) return std::move(prepared).error();
  return std::unique_ptr<Runner>(std::move(runner));
}

}  // namespace qevict
