// One text through many caches at once, to compare them: each cache sees and does what it would in a Session of its
// own, while the prompt is computed once and every weight is read once a step for all of them.
//
// A first prompt, then single tokens; all caches get the same ones. Used by one thread at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "qevict/session.h"

namespace qevict {

struct LockStepOptions {
  std::vector<CacheConfig> caches;  // at least one
  int n_threads = 0;                // 0: the machine's cores
  int n_ctx = 0;                    // 0: the model's trained length
  int chunk_tokens = 512;           // prompt tokens per matmul
};

class LockStep {
 public:
  // The model must outlive it. Errors: those of Session::create, of any cache.
  static Result<LockStep> create(const Model& model, const LockStepOptions& options);
  LockStep(LockStep&&) noexcept;
  LockStep& operator=(LockStep&&) noexcept;
  ~LockStep();

  std::size_t size() const;  // caches
  // The first prompt. Errors: those of Session::prefill, named by the method where it is one cache's. After an error
  // only reset() is legal.
  Result<void> prefill(std::span<const Token> tokens, int max_new, const Session::Progress& progress = {});
  // One more token to every cache. Errors: as Session::decode.
  Result<void> decode(Token token);
  // [n_vocab] of one cache, after the last token fed.
  std::span<const float> logits(std::size_t cache) const;

  int n_tokens() const;
  // attention_ms is the time of one thread.
  CacheReport report(std::size_t cache) const;
  std::vector<Setting> settings(std::size_t cache) const;
  void reset();

 private:
  struct State;
  explicit LockStep(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace qevict
