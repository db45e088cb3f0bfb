// The model's attention over a BudgetedCache: what the graph calls from ggml's threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/budgeted_cache.h"
#include "model/transformer.h"

namespace qevict {

class CacheAttention final : public Attention {
 public:
  CacheAttention(const ModelShape& model, BudgetedCache& cache);

  // Before each decode step, after BudgetedCache::begin_step().
  void begin_step();
  // The prefill layer that prefill_* work on; null while decoding.
  void set_prefill(PrefillLayer* prefill) { prefill_ = prefill; }
  // Before each layer of a prompt.
  void begin_layer(int layer);
  // The first thing that went wrong inside a graph, once.
  Result<void> take_error();
  std::size_t workspace_bytes() const;
  // Of decode steps so far, as the first thread saw it.
  double attention_ms() const { return attention_ms_; }

  // What of a prompt's queries the cache keeps: called by all threads, where prefill_attend() is not. first: position
  // of the first row.
  void note_queries(int layer, const float* q, int n_tokens, std::int64_t first, int thread, int n_threads);

  void decode_partial(int layer, const float* q, const float* k, const float* v, int thread,
                      int n_threads) noexcept override;
  void decode_merge(int layer, float* out, int thread, int n_threads) noexcept override;
  void prefill_store(int layer, const float* k, const float* v, int n_tokens, int thread,
                     int n_threads) noexcept override;
  void prefill_attend(int layer, const float* q, int n_tokens, float* out, int thread, int n_threads) noexcept override;

 private:
  // One (KV head, range) of a layer; its partial state and weights lie at the task's place in the scratch below.
  struct Task {
    int kv_head = 0;
    TokenRange range;
    bool appends = false;  // the range that holds the new token
    std::size_t weights = 0;
  };
  struct LayerTasks {
    std::vector<Task> tasks;      // by head, then in order of summation
    std::vector<int> first_task;  // [n_kv_heads + 1]
  };
  void plan_layer(int layer);
  void run_task(int layer, std::size_t index, const float* q, const float* k, const float* v);
  struct Total {
    float max = -std::numeric_limits<float>::infinity();
    float denom = 0;
  };
  std::span<const Total> totals(const LayerTasks& layer) const;
  float share(const Total& total, std::size_t task, std::size_t g) const;
  void merge_head(int layer_index, int kv_head, std::span<const Total> heads, float* out);
  void add_scores(int layer_index, std::size_t index, std::span<const Total> heads);
  void check_rows(int layer, const float* rows, std::size_t width, int n_rows, int thread, int n_threads) noexcept;
  void push_queries(int layer, const float* q, int n_tokens);
  void fail(int layer, const char* what) noexcept;

  const ModelShape* model_;
  BudgetedCache* cache_;
  PrefillLayer* prefill_ = nullptr;
  int tail_ = 0;  // tokens of earlier turns at the front of prefill_
  HeadShape shape_;
  std::vector<LayerTasks> layers_;
  std::vector<float> max_, denom_, acc_;  // [tasks of a layer][group], [..][group][value_dim]
  std::vector<float> weights_;            // exp(logit - max) of every token of every query head of a layer
  std::chrono::steady_clock::time_point layer_start_;
  double attention_ms_ = 0;
  std::atomic<int> next_task_{0};
  std::atomic<bool> failed_{false};
  Error error_;
};

}  // namespace qevict
