#include "rival_ggml.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "clock.h"
#include "ggml-cpp.h"
#include "messages.h"
#include "rival_threads.h"

namespace qevict::app {
namespace {

constexpr double kMostError = 0.02;  // f16 values, f32 sums

struct AttentionGraph {
  ggml_context_ptr context;
  ggml_cgraph* graph = nullptr;
  std::vector<ggml_tensor*> queries, out;  // of each node
};

void fill_normal(ggml_tensor* tensor, std::mt19937& random) {
  std::normal_distribution<float> normal;
  const auto n = static_cast<std::size_t>(ggml_nelements(tensor));
  if (tensor->type == GGML_TYPE_F32) {
    std::generate_n(static_cast<float*>(tensor->data), n, [&] { return normal(random); });
  } else {
    std::generate_n(static_cast<ggml_fp16_t*>(tensor->data), n, [&] { return ggml_fp32_to_fp16(normal(random)); });
  }
}

}  // namespace

struct GgmlAttention::State {
  explicit State(const AttentionShape& s) : shape(s), threads(s.n_threads) {}

  AttentionShape shape;
  RivalThreads threads;
  ggml_backend_ptr backend;
  ggml_context_ptr cache_memory;
  std::vector<ggml_tensor*> keys, values;  // [head_dim, n_kv_heads, n_tokens], of each layer
  AttentionGraph decode;
  std::vector<AttentionGraph> prefill;  // of each batch
  double error = 0;

  std::size_t cache_elements() const {
    return static_cast<std::size_t>(shape.head_dim) * static_cast<std::size_t>(shape.n_kv_heads) *
           static_cast<std::size_t>(shape.n_tokens);
  }
  // rows queries from first_row on in each of n_layers layers, over the tokens up to the last row.
  AttentionGraph build(int n_layers, int first_row, int rows);
  double run(const AttentionGraph& graph) const {
    const auto start = Clock::now();
    ggml_backend_graph_compute(backend.get(), graph.graph);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  double check() const;
};

AttentionGraph GgmlAttention::State::build(int n_layers, int first_row, int rows) {
  const int n_heads = shape.n_kv_heads * shape.group;
  const int n_tokens = first_row + rows;
  const auto floats = static_cast<std::size_t>(n_layers) * static_cast<std::size_t>(rows) *
                      static_cast<std::size_t>(n_heads) * static_cast<std::size_t>(shape.head_dim) * 2;
  const std::size_t mask_halves = static_cast<std::size_t>(n_tokens) * static_cast<std::size_t>(rows);
  const auto nodes = static_cast<std::size_t>(n_layers) * 8 + 8;
  AttentionGraph made;
  made.context.reset(ggml_init({floats * sizeof(float) + mask_halves * sizeof(ggml_fp16_t) +
                                    nodes * (ggml_tensor_overhead() + 64) + ggml_graph_overhead_custom(nodes, false),
                                nullptr, false}));
  ggml_context* context = made.context.get();
  ggml_tensor* mask = ggml_new_tensor_2d(context, GGML_TYPE_F16, n_tokens, rows);
  auto* allowed = static_cast<ggml_fp16_t*>(mask->data);
  for (int row = 0; row < rows; ++row)
    for (int t = 0; t < n_tokens; ++t) *allowed++ = ggml_fp32_to_fp16(t <= first_row + row ? 0.0f : -INFINITY);
  made.graph = ggml_new_graph_custom(context, nodes, false);
  std::mt19937 random(2);
  for (int layer = 0; layer < n_layers; ++layer) {
    ggml_tensor* query = ggml_new_tensor_3d(context, GGML_TYPE_F32, shape.head_dim, rows, n_heads);
    fill_normal(query, random);
    const auto view = [&](ggml_tensor* cache) {  // [head_dim, n_tokens, n_kv_heads], strided as in llama.cpp
      return ggml_view_3d(context, cache, shape.head_dim, n_tokens, shape.n_kv_heads, cache->nb[2], cache->nb[1], 0);
    };
    ggml_tensor* out = ggml_flash_attn_ext(context, query, view(keys[static_cast<std::size_t>(layer)]),
                                           view(values[static_cast<std::size_t>(layer)]), mask,
                                           1.0f / std::sqrt(static_cast<float>(shape.head_dim)), 0.0f, 0.0f);
    ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
    ggml_build_forward_expand(made.graph, out);
    made.queries.push_back(query);
    made.out.push_back(out);
  }
  return made;
}

// The last head of the last layer against a plain softmax.
double GgmlAttention::State::check() const {
  const int dim = shape.head_dim;
  const int n_heads = shape.n_kv_heads * shape.group;
  const float* query = static_cast<const float*>(decode.queries.back()->data) + (n_heads - 1) * dim;
  const float* got = static_cast<const float*>(decode.out.back()->data) + (n_heads - 1) * dim;
  const auto element = [&](const ggml_tensor* cache, int token, int d) {
    const std::int64_t row = std::int64_t{token} * shape.n_kv_heads + shape.n_kv_heads - 1;
    return static_cast<double>(ggml_fp16_to_fp32(static_cast<const ggml_fp16_t*>(cache->data)[row * dim + d]));
  };
  double sum = 0;
  std::vector<double> want(static_cast<std::size_t>(dim));
  for (int t = 0; t < shape.n_tokens; ++t) {
    double dot = 0;
    for (int d = 0; d < dim; ++d) dot += query[d] * element(keys.back(), t, d);
    const double weight = std::exp(dot / std::sqrt(dim));  // logits of normal data are far from overflow
    sum += weight;
    for (int d = 0; d < dim; ++d) want[static_cast<std::size_t>(d)] += weight * element(values.back(), t, d);
  }
  double difference = 0;
  double size = 0;
  for (int d = 0; d < dim; ++d) {
    const double value = want[static_cast<std::size_t>(d)] / sum;
    difference += (got[d] - value) * (got[d] - value);
    size += value * value;
  }
  return std::sqrt(difference / size);
}

GgmlAttention::GgmlAttention(std::unique_ptr<State> state) : state_(std::move(state)) {}
GgmlAttention::~GgmlAttention() = default;

Result<std::unique_ptr<GgmlAttention>> GgmlAttention::create(const AttentionShape& shape) {
  auto state = std::make_unique<State>(shape);
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (device != nullptr) state->backend.reset(ggml_backend_dev_init(device, nullptr));
  if (!state->backend) return Error{Error::Kind::internal, "cannot start ggml's CPU backend"};
  const auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(cpu_symbol("ggml_backend_set_n_threads"));
  const auto use_pool =
      reinterpret_cast<void (*)(ggml_backend_t, ggml_threadpool*)>(cpu_symbol("ggml_backend_cpu_set_threadpool"));
  if (set_threads != nullptr) set_threads(state->backend.get(), shape.n_threads);
  if (use_pool != nullptr && state->threads.get() != nullptr) use_pool(state->backend.get(), state->threads.get());

  const auto n_tensors = static_cast<std::size_t>(shape.n_layers) * 2;
  state->cache_memory.reset(ggml_init(
      {n_tensors * (state->cache_elements() * sizeof(ggml_fp16_t) + ggml_tensor_overhead() + 64), nullptr, false}));
  if (!state->cache_memory) return Error{Error::Kind::internal, "no memory for ggml's cache"};
  std::mt19937 random(1);
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    for (std::vector<ggml_tensor*>* side : {&state->keys, &state->values}) {
      side->push_back(ggml_new_tensor_3d(state->cache_memory.get(), GGML_TYPE_F16, shape.head_dim, shape.n_kv_heads,
                                         shape.n_tokens));
      if (layer == 0) {
        fill_normal(side->back(), random);
      } else {
        std::copy_n(static_cast<const ggml_fp16_t*>(side->front()->data), state->cache_elements(),
                    static_cast<ggml_fp16_t*>(side->back()->data));
      }
    }
  }
  state->decode = state->build(shape.n_layers, shape.n_tokens - 1, 1);
  for (int row = 0; row < shape.n_tokens; row += shape.batch)
    state->prefill.push_back(state->build(1, row, std::min(shape.batch, shape.n_tokens - row)));
  state->run(state->decode);
  state->error = state->check();
  if (!(state->error <= kMostError)) {
    return Error{Error::Kind::internal,
                 fmt::format("ggml_flash_attn_ext is off by {:.2e} from a plain softmax", state->error)};
  }
  return std::unique_ptr<GgmlAttention>(new GgmlAttention(std::move(state)));
}

double GgmlAttention::decode() { return state_->run(state_->decode); }

double GgmlAttention::prefill() {
  double seconds = 0;
  for (const AttentionGraph& graph : state_->prefill) seconds += state_->run(graph);
  return seconds;
}

double GgmlAttention::output_error() const { return state_->error; }

double GgmlAttention::cache_bytes() const {
  return 2.0 * state_->shape.n_layers * static_cast<double>(state_->cache_elements()) * sizeof(ggml_fp16_t);
}

}  // namespace qevict::app
