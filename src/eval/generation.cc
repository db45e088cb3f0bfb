#include "eval/generation.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"
#include "qevict/generate.h"

namespace qevict {

Agreement compare_tokens(std::span<const Token> base, std::span<const Token> tested) {
  QEVICT_CHECK(!base.empty() && base.size() == tested.size(), "two texts of one length, at least one token");
  const auto equal_share = [&](std::size_t most) {
    const std::size_t n = std::min(most, base.size());
    const int equal = std::inner_product(base.begin(), base.begin() + static_cast<std::ptrdiff_t>(n), tested.begin(), 0,
                                         std::plus<>{}, [](Token a, Token b) { return a == b ? 1 : 0; });
    return equal / static_cast<double>(n);
  };
  const auto first = std::mismatch(base.begin(), base.end(), tested.begin()).first - base.begin();
  return {.first_difference = first,
          .equal_64 = equal_share(64),
          .equal_256 = equal_share(256),
          .before_first_difference = static_cast<double>(first) / static_cast<double>(base.size())};
}

double distinct_ngrams(std::span<const Token> tokens, int n) {
  QEVICT_CHECK(n >= 1, "an n-gram has at least one token");
  const auto length = static_cast<std::size_t>(n);
  if (tokens.size() <= length) return 1;
  const std::size_t all = tokens.size() - length + 1;
  std::set<std::vector<Token>> distinct;
  for (std::size_t at = 0; at < all; ++at) {
    const auto ngram = tokens.subspan(at, length);
    distinct.emplace(ngram.begin(), ngram.end());
  }
  return static_cast<double>(distinct.size()) / static_cast<double>(all);
}

Result<std::vector<GenerationResult>> eval_generation(const Model& model, std::span<const Token> text,
                                                      const GenerationOptions& options, const EvalProgress& progress) {
  if (options.prompt_tokens < 1 || options.n_new < 1) {
    return invalid("a generation needs at least 1 token of prompt and 1 new token, got {} and {}",
                   options.prompt_tokens, options.n_new);
  }
  if (text.size() < static_cast<std::size_t>(options.prompt_tokens)) {
    return invalid("the text has {} tokens, fewer than the {} of the prompt: give a longer text or a smaller --prefill",
                   text.size(), options.prompt_tokens);
  }
  std::vector<CacheConfig> caches = {{.method = "full"}};
  caches.insert(caches.end(), options.caches.begin(), options.caches.end());
  EvalWork work(static_cast<double>(caches.size()) * options.n_new, progress);
  std::vector<GenerationResult> results;
  for (const CacheConfig& cache : caches) {
    Result<Session> session = Session::create(
        model, {.cache = cache, .n_threads = options.n_threads, .n_ctx = options.prompt_tokens + options.n_new});
    if (!session) return session.error();
    const GenerateOptions greedy{.max_new = options.n_new, .sampling = {.temperature = 0}, .ignore_eos = true};
    bool stopped = false;
    Result<Generation> generation =
        generate(model, *session, text.first(static_cast<std::size_t>(options.prompt_tokens)), greedy,
                 {.progress = [&](std::int64_t, std::int64_t) { return !(stopped = !work.done(0)); },
                  .stop = [&] { return stopped = !work.done(1); }});
    if (!generation) return generation.error();
    if (stopped) return eval_stopped();
    GenerationResult result{.method = cache.method,
                            .settings = session->settings(),
                            .tokens = generation->tokens,
                            .text = generation->text,
                            .prefill_tps = generation->prefill_tps(),
                            .decode_tps = generation->decode_tps()};
    result.kv.add(session->report());
    result.distinct_4grams = distinct_ngrams(result.tokens, 4);
    const GenerationResult& full = results.empty() ? result : results.front();
    result.agreement = compare_tokens(full.tokens, result.tokens);
    result.distinct_4grams_vs_full = result.distinct_4grams / full.distinct_4grams;
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace qevict
