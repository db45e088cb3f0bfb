// Divergence of a cache that is compressed while decoding from the full cache (evaluation.md 4.2).
//
// Per chunk: an exact prefill of `prefill_tokens`, compression, then the rest of the chunk one token at a time,
// teacher-forced, with routing live; the full cache runs beside it in lock-step. The logits after the prefill are not
// scored (they are equal by construction); those of every decode step but the last score the next token. All caches
// are computed together (qevict/lock_step.h).
#pragma once

#include <string>
#include <vector>

#include "eval/divergence.h"
#include "eval/kv_use.h"
#include "eval/progress.h"
#include "qevict/session.h"

namespace qevict {

struct PerplexityOptions {
  std::vector<CacheConfig> caches;  // each compared with the full cache
  int chunk_tokens = 2304;
  int prefill_tokens = 2048;
  int max_chunks = 8;
  int n_threads = 0;
};

struct DecodeBin {
  int first_step = 1, last_step = 16;  // inclusive; the last bin is open
  std::int64_t n_tokens = 0;
  double kld = 0;
  double same_top = 0;
};

struct PerplexityResult {
  std::string method;
  std::vector<Setting> settings;
  DivergenceSummary divergence;
  std::vector<DecodeBin> bins;
  KvUse kv;
  double cache_ms_per_token = 0;  // of a decode step: attention on one thread, and routing
};

// tokens: the whole text. Errors: fewer tokens than one chunk; what Session says.
Result<std::vector<PerplexityResult>> eval_perplexity(const Model& model, std::span<const Token> tokens,
                                                      const PerplexityOptions& options,
                                                      const EvalProgress& progress = {});

}  // namespace qevict
