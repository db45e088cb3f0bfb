#include "engine/cache_attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/finite.h"

namespace qevict {
namespace {

// Cuts a head's tokens into ranges that depend on the cache alone. In a compressed head every range of full-precision
// windows holds whole windows, so that a window's score has one writer.
void cut_head(const HeadCache& head, int window_tokens, std::vector<TokenRange>& ranges) {
  const int per_range = std::max(1, kRangeTokens / window_tokens) * window_tokens;
  const int windows_end = head.sink_tokens() + head.full_tokens();
  for (int begin = 0; begin < windows_end;) {
    const int end = std::min(windows_end, begin == 0 ? head.sink_tokens() + per_range : begin + per_range);
    ranges.push_back({.begin = begin, .end = end, .codes = false});
    begin = end;
  }
  const int code_tokens = head.quantized_windows() * window_tokens;
  for (int begin = 0; begin < code_tokens; begin += per_range) {
    ranges.push_back({.begin = begin, .end = std::min(code_tokens, begin + per_range), .codes = true});
  }
  // The tail last, with room for the token of this step: it grows while the other ranges are read.
  const int tail_end = windows_end + head.tail().n + 1;
  for (int begin = windows_end; begin < tail_end; begin += kRangeTokens) {
    ranges.push_back({.begin = begin, .end = std::min(tail_end, begin + kRangeTokens), .codes = false});
  }
}

}  // namespace

CacheAttention::CacheAttention(const ModelShape& model, BudgetedCache& cache)
    : model_(&model),
      cache_(&cache),
      shape_{.key_dim = model.head_dim, .value_dim = model.head_dim, .group = model.n_heads / model.n_kv_heads},
      layers_(static_cast<std::size_t>(model.n_layers)) {}

void CacheAttention::begin_step() {
  std::size_t most_tasks = 0;
  std::size_t most_weights = 0;
  const auto group = static_cast<std::size_t>(shape_.group);
  for (int l = 0; l < model_->n_layers; ++l) {
    plan_layer(l);
    const LayerTasks& layer = layers_[static_cast<std::size_t>(l)];
    most_tasks = std::max(most_tasks, layer.tasks.size());
    const Task& last = layer.tasks.back();
    most_weights =
        std::max(most_weights, last.weights + group * static_cast<std::size_t>(last.range.end - last.range.begin));
  }
  const auto grow = [](std::vector<float>& buffer, std::size_t size) {
    if (buffer.size() < size) buffer.resize(size + size / 8);
  };
  grow(max_, most_tasks * group);
  grow(denom_, most_tasks * group);
  grow(acc_, most_tasks * group * static_cast<std::size_t>(shape_.value_dim));
  grow(weights_, most_weights);
  next_task_ = 0;
}

void CacheAttention::plan_layer(int layer_index) {
  LayerTasks& layer = layers_[static_cast<std::size_t>(layer_index)];
  layer.tasks.clear();
  layer.first_task.assign(1, 0);
  std::size_t weights = 0;
  std::vector<TokenRange> ranges;
  for (int h = 0; h < model_->n_kv_heads; ++h) {
    ranges.clear();
    cut_head(cache_->tiers().head(layer_index, h), cache_->tiers().rule().zones.window, ranges);
    for (const TokenRange& range : ranges) {
      layer.tasks.push_back({.kv_head = h, .range = range, .appends = &range == &ranges.back(), .weights = weights});
      weights += static_cast<std::size_t>(range.end - range.begin) * static_cast<std::size_t>(shape_.group);
    }
    layer.first_task.push_back(static_cast<int>(layer.tasks.size()));
  }
}

void CacheAttention::decode_partial(int layer, const float* q, const float* k, const float* v, int thread,
                                    int) noexcept {
  try {
    if (thread == 0) layer_start_ = std::chrono::steady_clock::now();
    const auto n_tasks = static_cast<int>(layers_[static_cast<std::size_t>(layer)].tasks.size());
    for (int task = next_task_++; task < n_tasks; task = next_task_++)
      run_task(layer, static_cast<std::size_t>(task), q, k, v);
  } catch (const std::exception& exception) {
    fail(layer, exception.what());
  }
}

void CacheAttention::run_task(int layer, std::size_t index, const float* q, const float* k, const float* v) {
  const Task& task = layers_[static_cast<std::size_t>(layer)].tasks[index];
  HeadCache& head = cache_->tiers().head(layer, task.kv_head);
  const auto kv_head = static_cast<std::size_t>(task.kv_head);
  const auto group = static_cast<std::size_t>(shape_.group);
  const auto key_dim = static_cast<std::size_t>(shape_.key_dim);
  const auto value_dim = static_cast<std::size_t>(shape_.value_dim);
  if (task.appends) {
    // Kernels may drop a NaN, so it must not get into the cache, or be the query.
    if (!all_finite({q + kv_head * group * key_dim, group * key_dim}) ||
        !all_finite({k + kv_head * key_dim, key_dim}) || !all_finite({v + kv_head * value_dim, value_dim})) {
      return fail(layer, "a query, key or value is not finite");
    }
    head.append(k + kv_head * key_dim, v + kv_head * value_dim);
    if (cache_->keeps_queries()) head.push_query(q + kv_head * group * key_dim);
  }

  thread_local std::vector<F16Run> runs;
  thread_local std::vector<CodeWindow> codes;
  runs.clear();
  codes.clear();
  HeadView view = head.view();
  TokenRange range = task.range;
  if (range.codes) {
    const int window = view.window.tokens;
    head.append_codes(range.begin / window, range.end / window, codes);
    range.end -= range.begin;
    range.begin = 0;
  } else {
    head.append_runs(range.begin, range.end, runs);
  }
  view.f16 = runs;
  view.codes = codes;
  const auto length = static_cast<std::size_t>(range.end - range.begin);
  attend_decode(
      shape_, view, range, {q + kv_head * group * key_dim, group * key_dim}, model_->attention_scale,
      {weights_.data() + task.weights, length * group}, length,
      {.max = &max_[index * group], .denom = &denom_[index * group], .acc = &acc_[index * group * value_dim]});
  for (std::size_t at = index * group; at < (index + 1) * group; ++at) {
    if (!std::isfinite(max_[at]) || !std::isfinite(denom_[at]))
      return fail(layer, "the attention logits are not finite");
  }
}

// Maximum and total denominator of each query head over all its ranges, as every thread that merges needs them.
std::span<const CacheAttention::Total> CacheAttention::totals(const LayerTasks& layer) const {
  thread_local std::vector<Total> result;
  const auto group = static_cast<std::size_t>(shape_.group);
  result.assign(static_cast<std::size_t>(model_->n_heads), Total{});
  for (std::size_t t = 0; t < layer.tasks.size(); ++t) {
    Total* of_head = &result[static_cast<std::size_t>(layer.tasks[t].kv_head) * group];
    for (std::size_t g = 0; g < group; ++g) of_head[g].max = std::max(of_head[g].max, max_[t * group + g]);
  }
  for (std::size_t t = 0; t < layer.tasks.size(); ++t) {
    Total* of_head = &result[static_cast<std::size_t>(layer.tasks[t].kv_head) * group];
    for (std::size_t g = 0; g < group; ++g) {
      const std::size_t at = t * group + g;
      if (denom_[at] > 0) of_head[g].denom += denom_[at] * std::exp(max_[at] - of_head[g].max);
    }
  }
  return result;
}

// What turns a task's unnormalised weights and sums into probabilities; 0 if the task is empty.
float CacheAttention::share(const Total& total, std::size_t task, std::size_t g) const {
  const std::size_t at = task * static_cast<std::size_t>(shape_.group) + g;
  return denom_[at] > 0 ? std::exp(max_[at] - total.max) / total.denom : 0.0f;
}

void CacheAttention::decode_merge(int layer_index, float* out, int thread, int n_threads) noexcept {
  try {
    const LayerTasks& layer = layers_[static_cast<std::size_t>(layer_index)];
    if (thread == 0) next_task_ = 0;  // of the next layer; a barrier lies between
    if (failed_) {                    // the token may not be in the cache; what the graph makes of this is thrown away
      if (thread == 0)
        std::fill_n(out, static_cast<std::size_t>(model_->n_heads) * static_cast<std::size_t>(shape_.value_dim), 0.0f);
      return;
    }
    const std::span<const Total> heads = totals(layer);
    for (int h = thread; h < model_->n_kv_heads; h += n_threads) merge_head(layer_index, h, heads, out);
    if (cache_->follows_attention()) {
      for (std::size_t t = static_cast<std::size_t>(thread); t < layer.tasks.size();
           t += static_cast<std::size_t>(n_threads)) {
        add_scores(layer_index, t, heads);
      }
    }
    if (thread == 0) {
      attention_ms_ +=
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - layer_start_).count();
    }
  } catch (const std::exception& exception) {
    fail(layer_index, exception.what());
  }
}

void CacheAttention::merge_head(int layer_index, int kv_head, std::span<const Total> heads, float* out) {
  const LayerTasks& layer = layers_[static_cast<std::size_t>(layer_index)];
  const auto group = static_cast<std::size_t>(shape_.group);
  const auto value_dim = static_cast<std::size_t>(shape_.value_dim);
  for (std::size_t g = 0; g < group; ++g) {
    const std::size_t head = static_cast<std::size_t>(kv_head) * group + g;
    float* row = out + head * value_dim;
    std::fill_n(row, value_dim, 0.0f);
    for (int t = layer.first_task[static_cast<std::size_t>(kv_head)];
         t < layer.first_task[static_cast<std::size_t>(kv_head) + 1]; ++t) {
      const auto task = static_cast<std::size_t>(t);
      const float factor = share(heads[head], task, g);
      const float* acc = &acc_[(task * group + g) * value_dim];
      if (factor > 0) {
        for (std::size_t d = 0; d < value_dim; ++d) row[d] += factor * acc[d];
      }
    }
    float sum = 0;
    for (std::size_t d = 0; d < value_dim; ++d) sum += row[d];
    if (!std::isfinite(sum)) fail(layer_index, "the attention output is not finite");
  }
}

void CacheAttention::add_scores(int layer_index, std::size_t index, std::span<const Total> heads) {
  const LayerTasks& layer = layers_[static_cast<std::size_t>(layer_index)];
  const Task& task = layer.tasks[index];
  HeadCache& head = cache_->tiers().head(layer_index, task.kv_head);
  const int length = task.range.end - task.range.begin;
  const auto group = static_cast<std::size_t>(shape_.group);
  thread_local std::vector<float> row;  // mean probability of each token
  row.assign(static_cast<std::size_t>(length), 0.0f);
  for (std::size_t g = 0; g < group; ++g) {
    const Total& total = heads[static_cast<std::size_t>(task.kv_head) * group + g];
    const float factor = share(total, index, g) / static_cast<float>(group);
    const float* weights = weights_.data() + task.weights + g * static_cast<std::size_t>(length);
    for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i) row[i] += factor * weights[i];
  }

  const float decay = cache_->decay();
  const int window = cache_->tiers().rule().zones.window;
  const int power = cache_->score_power();
  if (power > 1) {
    for (float& p : row) p = std::pow(p, static_cast<float>(power));
  }
  const auto add_window = [&](std::span<float> accumulators, int at) {
    const std::span<const float> of_window =
        std::span(row).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(window));
    if (accumulators.size() > 1) {
      for (std::size_t i = 0; i < accumulators.size(); ++i) accumulators[i] = decay * accumulators[i] + of_window[i];
      return;
    }
    float sum = 0;
    for (const float p : of_window) sum += p;
    accumulators.front() = decay * accumulators.front() + sum;
  };
  if (task.range.codes) {
    for (int at = 0; at < length; at += window) add_window(head.code_scores((task.range.begin + at) / window), at);
    return;
  }
  const int sinks = head.sink_tokens();
  const int windows_end = sinks + head.full_tokens();
  const std::span<float> tail = head.tail_scores();
  for (int token = std::max(task.range.begin, sinks); token < std::min(task.range.end, windows_end); token += window) {
    add_window(head.full_scores((token - sinks) / window), token - task.range.begin);
  }
  for (int token = std::max(task.range.begin, windows_end); token < task.range.end; ++token) {
    float& score = tail[static_cast<std::size_t>(token - windows_end)];
    score = decay * score + row[static_cast<std::size_t>(token - task.range.begin)];
  }
}

// The thread's share of [n_rows][width] queries, keys or values.
void CacheAttention::check_rows(int layer, const float* rows, std::size_t width, int n_rows, int thread,
                                int n_threads) noexcept {
  const auto first_row = [&](int t) { return static_cast<std::size_t>(std::int64_t{n_rows} * t / n_threads); };
  const std::size_t begin = first_row(thread) * width;
  if (!all_finite({rows + begin, first_row(thread + 1) * width - begin}))
    fail(layer, "a query, key or value is not finite");
}

void CacheAttention::begin_layer(int layer) {
  tail_ = cache_->tiers().head(layer, 0).tail().n;
  if (QueryStatistics* statistics = cache_->query_statistics()) {
    statistics->begin(model_->n_heads, model_->head_dim, static_cast<double>(model_->attention_scale));
  }
}

void CacheAttention::prefill_store(int layer, const float* k, const float* v, int n_tokens, int thread,
                                   int n_threads) noexcept {
  try {
    const auto width = static_cast<std::size_t>(model_->n_kv_heads * model_->head_dim);
    check_rows(layer, k, width, n_tokens, thread, n_threads);
    check_rows(layer, v, width, n_tokens, thread, n_threads);
    prefill_->store(k, v, n_tokens, thread, n_threads);
  } catch (const std::exception& exception) {
    fail(layer, exception.what());
  }
}

void CacheAttention::prefill_attend(int layer, const float* q, int n_tokens, float* out, int thread,
                                    int n_threads) noexcept {
  try {
    check_rows(layer, q, static_cast<std::size_t>(model_->n_heads * model_->head_dim), n_tokens, thread, n_threads);
    // The rows are the last of the chunk's: size() counts them.
    note_queries(layer, q, n_tokens, cache_->n_tokens() + prefill_->size() - n_tokens - tail_, thread, n_threads);
    prefill_->attend(q, n_tokens, model_->attention_scale, out, thread, n_threads);
  } catch (const std::exception& exception) {
    fail(layer, exception.what());
  }
}

void CacheAttention::note_queries(int layer, const float* q, int n_tokens, std::int64_t first, int thread,
                                  int n_threads) {
  if (QueryStatistics* statistics = cache_->query_statistics())
    statistics->add(q, n_tokens, first, model_->rope, thread, n_threads);
  if (thread == 0 && cache_->keeps_queries()) push_queries(layer, q, n_tokens);
}

// The last rows are all that the heads keep.
void CacheAttention::push_queries(int layer, const float* q, int n_tokens) {
  const auto row = static_cast<std::size_t>(model_->n_heads * model_->head_dim);
  const auto of_head = static_cast<std::size_t>(shape_.group * model_->head_dim);
  for (int t = std::max(0, n_tokens - cache_->tiers().rule().query_rows); t < n_tokens; ++t) {
    for (int h = 0; h < model_->n_kv_heads; ++h)
      cache_->tiers().head(layer, h).push_query(q + static_cast<std::size_t>(t) * row +
                                                static_cast<std::size_t>(h) * of_head);
  }
}

void CacheAttention::fail(int layer, const char* what) noexcept {
  if (failed_.exchange(true)) return;
  error_ = error_of(Error::Kind::internal, "layer {}: {}", layer, what);
}

Result<void> CacheAttention::take_error() {
  if (!failed_) return {};
  failed_ = false;
  return std::move(error_);
}

std::size_t CacheAttention::workspace_bytes() const {
  std::size_t bytes = (max_.capacity() + denom_.capacity() + acc_.capacity() + weights_.capacity()) * sizeof(float);
  for (const LayerTasks& layer : layers_) {
    bytes += layer.tasks.capacity() * sizeof(Task) + layer.first_task.capacity() * sizeof(int);
  }
  return bytes;
}

}  // namespace qevict
