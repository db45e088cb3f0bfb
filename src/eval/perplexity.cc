#include "eval/perplexity.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace qevict {
namespace {

constexpr std::pair<int, int> kBins[] = {{1, 16}, {17, 64}, {65, 256}, {257, 1 << 30}};

struct Run {
  Session session;
  std::vector<TokenDivergence> tokens;
  std::vector<int> steps;  // of each scored token, from 1
  double decode_seconds = 0;
  PerplexityResult result;
};

void finish(Run& run) {
  PerplexityResult& result = run.result;
  result.divergence = summarize(run.tokens);
  for (const auto& [first, last] : kBins) {
    DecodeBin bin{.first_step = first, .last_step = last};
    for (std::size_t i = 0; i < run.tokens.size(); ++i) {
      if (run.steps[i] < first || run.steps[i] > last) continue;
      ++bin.n_tokens;
      bin.kld += run.tokens[i].kld;
      bin.same_top += run.tokens[i].same_top ? 1 : 0;
    }
    if (bin.n_tokens == 0) continue;
    bin.kld /= static_cast<double>(bin.n_tokens);
    bin.same_top /= static_cast<double>(bin.n_tokens);
    result.bins.push_back(bin);
  }
  result.seconds_per_token = run.decode_seconds / static_cast<double>(std::max<std::size_t>(1, run.tokens.size()));
}

}  // namespace

Result<std::vector<PerplexityResult>> eval_perplexity(const Model& model, std::span<const Token> tokens,
                                                      const PerplexityOptions& options, const EvalProgress& progress) {
  const int n_new = options.chunk_tokens - options.prefill_tokens;
  if (options.prefill_tokens < 1 || n_new < 2) {
    return invalid("a chunk of {} tokens with {} of prefill scores nothing: leave at least 2 tokens to decode",
                   options.chunk_tokens, options.prefill_tokens);
  }
  const int n_chunks = std::min(options.max_chunks, static_cast<int>(tokens.size()) / options.chunk_tokens);
  if (n_chunks < 1) {
    return invalid("the text has {} tokens, fewer than one chunk of {}: give a longer text or a smaller context",
                   tokens.size(), options.chunk_tokens);
  }
  const auto make = [&](const CacheConfig& cache) {
    return Session::create(model, {.cache = cache, .n_threads = options.n_threads, .n_ctx = options.chunk_tokens});
  };
  Result<Session> base = make({.method = "full"});
  if (!base) return base.error();
  std::vector<Run> runs;
  for (const CacheConfig& cache : options.caches) {
    Result<Session> session = make(cache);
    if (!session) return session.error();
    runs.push_back({.session = std::move(*session), .result = {.method = cache.method}});
    runs.back().result.settings = runs.back().session.settings();
  }

  EvalWork work(static_cast<double>(n_chunks) * static_cast<double>(runs.size() + 1) * options.chunk_tokens, progress);
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    const auto text = tokens.subspan(static_cast<std::size_t>(chunk) * static_cast<std::size_t>(options.chunk_tokens),
                                     static_cast<std::size_t>(options.chunk_tokens));
    const auto prefix = text.first(static_cast<std::size_t>(options.prefill_tokens));
    base->reset();
    if (Result<void> fed = base->prefill(prefix, n_new); !fed) return fed.error();
    if (!work.done(options.prefill_tokens)) return eval_stopped();
    for (Run& run : runs) {
      run.session.reset();
      if (Result<void> fed = run.session.prefill(prefix, n_new); !fed) return fed.error();
      if (!work.done(options.prefill_tokens)) return eval_stopped();
    }
    for (int at = options.prefill_tokens; at + 1 < options.chunk_tokens; ++at) {
      const Token token = text[static_cast<std::size_t>(at)];
      const Token next = text[static_cast<std::size_t>(at) + 1];
      if (Result<void> fed = base->decode(token); !fed) return fed.error();
      for (Run& run : runs) {
        const auto start = std::chrono::steady_clock::now();
        if (Result<void> fed = run.session.decode(token); !fed) return fed.error();
        run.decode_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        run.tokens.push_back(compare_logits(base->logits(), run.session.logits(), next));
        run.steps.push_back(at - options.prefill_tokens + 1);
      }
      if (!work.done(static_cast<double>(runs.size() + 1))) return eval_stopped();
    }
    for (Run& run : runs) run.result.kv.add(run.session.report());
  }
  std::vector<PerplexityResult> results;
  for (Run& run : runs) {
    finish(run);
    results.push_back(std::move(run.result));
  }
  return results;
}

}  // namespace qevict
