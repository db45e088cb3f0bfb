#include "eval/perplexity.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "qevict/lock_step.h"

namespace qevict {
namespace {

constexpr std::pair<int, int> kBins[] = {{1, 16}, {17, 64}, {65, 256}, {257, 1 << 30}};

struct Run {
  std::vector<TokenDivergence> tokens;
  std::vector<int> steps;  // of each scored token, from 1
  double cache_ms = 0;
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
  result.cache_ms_per_token = run.cache_ms / static_cast<double>(std::max<std::size_t>(1, run.tokens.size()));
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
  std::vector<CacheConfig> caches = {{.method = "full"}};  // the base
  caches.insert(caches.end(), options.caches.begin(), options.caches.end());
  Result<LockStep> all = LockStep::create(
      model, {.caches = std::move(caches), .n_threads = options.n_threads, .n_ctx = options.chunk_tokens});
  if (!all) return all.error();
  std::vector<Run> runs(options.caches.size());
  for (std::size_t i = 0; i < runs.size(); ++i)
    runs[i].result = {.method = options.caches[i].method, .settings = all->settings(i + 1)};

  // A step costs about as much as this many tokens of a prompt, for each cache.
  const double step_work = 0.5 * static_cast<double>(all->size()) + 4;
  EvalWork work(n_chunks * (options.prefill_tokens + step_work * (n_new - 1)), progress);
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    const auto text = tokens.subspan(static_cast<std::size_t>(chunk) * static_cast<std::size_t>(options.chunk_tokens),
                                     static_cast<std::size_t>(options.chunk_tokens));
    all->reset();
    const auto prefix = text.first(static_cast<std::size_t>(options.prefill_tokens));
    double read = 0;
    const Result<void> fed = all->prefill(prefix, n_new, [&](std::int64_t done, std::int64_t total) {
      const double now = static_cast<double>(done) / static_cast<double>(total) * options.prefill_tokens;
      return work.done(now - std::exchange(read, now));
    });
    if (!fed) return fed.error();
    for (int at = options.prefill_tokens; at + 1 < options.chunk_tokens; ++at) {
      const Token next = text[static_cast<std::size_t>(at) + 1];
      if (Result<void> stepped = all->decode(text[static_cast<std::size_t>(at)]); !stepped) return stepped.error();
      for (std::size_t i = 0; i < runs.size(); ++i) {
        runs[i].tokens.push_back(compare_logits(all->logits(0), all->logits(i + 1), next));
        runs[i].steps.push_back(at - options.prefill_tokens + 1);
      }
      if (!work.done(step_work)) return eval_stopped();
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const CacheReport report = all->report(i + 1);
      runs[i].result.kv.add(report);
      runs[i].cache_ms += report.attention_ms + report.routing_ms + report.migration_ms;
    }
  }
  std::vector<PerplexityResult> results;
  for (Run& run : runs) {
    finish(run);
    results.push_back(std::move(run.result));
  }
  return results;
}

}  // namespace qevict
