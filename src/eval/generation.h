// How a free-running greedy text changes with the cache: each method continues the same prompt, and its tokens are
// compared with those of the full cache. One wrong token changes all that follow, so the shares say where texts part,
// not how good they are; whether a long text falls into repetition shows in its distinct 4-grams.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/kv_use.h"
#include "eval/progress.h"
#include "qevict/session.h"

namespace qevict {

struct Agreement {
  std::int64_t first_difference = 0;  // index of the first unequal token; the number of tokens if there is none
  // Shares of equal tokens at equal places among the first 64 and 256, of as many as there are.
  double equal_64 = 1;
  double equal_256 = 1;
  double before_first_difference = 1;  // share of the tokens
};

// REQUIRES: equally many, at least one.
Agreement compare_tokens(std::span<const Token> base, std::span<const Token> tested);

// Different n-grams / all n-grams; 1 for fewer than n + 1 tokens. REQUIRES: n >= 1.
double distinct_ngrams(std::span<const Token> tokens, int n);

struct GenerationOptions {
  std::vector<CacheConfig> caches;  // the full cache is measured beside them
  int prompt_tokens = 512;
  int n_new = 1500;
  int n_threads = 0;
};

struct GenerationResult {
  std::string method;
  std::vector<Setting> settings;
  std::vector<Token> tokens;
  std::string text;
  Agreement agreement;                 // with the full cache
  double distinct_4grams = 1;          // distinct_ngrams of 4
  double distinct_4grams_vs_full = 1;  // the same divided by the full cache's
  double prefill_tps = 0, decode_tps = 0;
  KvUse kv;
};

// The first result is the full cache's. The model's end-of-text tokens are banned, so that all texts are equally long.
// text: the whole text's tokens, start tokens included. Errors: a text too short; what Session says.
Result<std::vector<GenerationResult>> eval_generation(const Model& model, std::span<const Token> text,
                                                      const GenerationOptions& options,
                                                      const EvalProgress& progress = {});

}  // namespace qevict
