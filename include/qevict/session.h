// A Session is one sequence of tokens and its KV cache.
//
// Feed tokens with prefill() (a prompt, later another turn) and decode() (one at a time); after each, logits() are
// those of the last token fed. A session is used by one thread at a time; its kernels run on `n_threads`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "qevict/cache_config.h"
#include "qevict/model.h"
#include "qevict/result.h"

namespace qevict {

struct SessionOptions {
  CacheConfig cache;
  int n_threads = 0;       // 0: the machine's cores
  int n_ctx = 0;           // most tokens of the session; 0: the model's trained length
  int chunk_tokens = 512;  // prompt tokens per matmul; changes speed only
};

// Bytes, all measured: what is allocated, free slots included.
struct CacheBytes {
  std::size_t f16 = 0;        // sinks, recent region and, while nothing had to be compressed, everything
  std::size_t full = 0;       // full-precision windows
  std::size_t quantized = 0;  // codes with their scales and zeros
  std::size_t ledger = 0;     // codes kept for promoted windows, frozen per-head parameters
  std::size_t metadata = 0;   // window ids, score accumulators
  std::size_t total() const { return f16 + full + quantized + ledger + metadata; }
};

struct CacheReport {
  std::size_t budget_bytes = 0;      // asked for
  std::size_t budget_effective = 0;  // in force: raised to the smallest workable where `recent` is auto
  CacheBytes bytes;                  // now
  std::size_t bytes_prefill_end = 0;
  std::size_t bytes_peak = 0;       // after any step
  std::size_t bytes_full = 0;       // an f16 cache of base_tokens
  std::int64_t base_tokens = 0;     // what a ratio refers to: context, prompt + max_new, or tokens seen so far
  std::size_t prefill_kv_peak = 0;  // peak KV during prefill: one layer uncompressed + what was compressed so far
  std::size_t workspace_peak = 0;   // scratch of one step at its largest, graphs included
  double ratio_peak = 0;            // bytes_peak / bytes_full
  double ratio_mean = 0;            // sum of bytes / sum of the f16 bytes of the tokens so far, over decode steps
  int recent_tokens = 0;
  int full_slots = 0;        // mean over heads, capacity in windows
  int quantized_slots = 0;   // likewise
  bool compressing = false;  // some window may be or was quantized or evicted
  // Windows over all layers and KV heads.
  std::int64_t windows_full = 0;
  std::int64_t windows_quantized = 0;
  std::int64_t windows_evicted = 0;
  std::int64_t tokens_evicted = 0;  // token entries of evicted windows
  // Moves since the start, over all layers and KV heads.
  std::int64_t promotions = 0;  // quantized -> full
  std::int64_t demotions = 0;   // full (or newly arrived) -> quantized
  std::int64_t evictions = 0;
  std::int64_t routings = 0;  // events
  // Time while decoding.
  std::int64_t steps = 0;
  double routing_ms = 0;    // ranking and planning
  double migration_ms = 0;  // carrying plans out: moving and encoding windows
  double attention_ms = 0;  // attention ops of the graph, waiting for each other included
};

// The settings in force, for printing: {"kv-method", "qevict-paper"}, ...
struct Setting {
  std::string name;
  std::string value;
};

class Session {
 public:
  // done of total tokens x layers; return false to stop.
  using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

  // The model must outlive the session. Errors: unknown method or ranking, contradictory options, budget out of range.
  static Result<Session> create(const Model& model, const SessionOptions& options);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  // Feeds a prompt or a further turn. max_new: most tokens the caller will decode after it, -1 if not known; the first
  // call fixes the byte budget (cache_config.h). Errors: empty prompt; more tokens than the context holds, with both
  // numbers; a budget that leaves no window, with the smallest workable one; non-finite numbers, naming the layer.
  // After an error of the caller's (invalid, too_long) the session is as it was; after any other only reset() is legal.
  Result<void> prefill(std::span<const Token> tokens, int max_new, const Progress& progress = {});
  // Feeds one token. Errors: the context is full.
  Result<void> decode(Token token);
  // [n_vocab], of the last token fed. Valid until the next call.
  std::span<float> logits();

  // Tokens fed so far = the next position.
  int n_tokens() const;
  int n_ctx() const;
  CacheReport report() const;
  std::vector<Setting> settings() const;
  // For benchmarks: milliseconds of a decode step's matrix products alone, on the session's threads. Changes nothing.
  Result<double> matmul_ms();
  // Forgets everything; the options stay.
  void reset();

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace qevict
