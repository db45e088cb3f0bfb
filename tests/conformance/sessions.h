// Sessions on a tiny random model, for the conformance tests: nothing to download, milliseconds to run.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "engine/cache_settings.h"
#include "qevict/qevict.h"
#include "support/scratch.h"
#include "support/tiny_model.h"

namespace qevict {

inline constexpr int kTinyContext = 1024;
inline constexpr std::size_t kTinyHeads = 3 * 2;
inline constexpr std::size_t kTinyTokenBytes = 4 * 64;  // f16 key and value of one head
// Of the queries that a method's ranking looks back on.
inline std::size_t tiny_query_bytes(std::string_view method) {
  const Result<CacheSettings> settings = CacheSettings::from({.method = std::string(method)}, kTinyContext);
  return kTinyHeads *
         settings->rule.query_bytes({.n_layers = 3, .n_kv_heads = 2, .key_dim = 64, .value_dim = 64, .group = 3});
}

inline const Model& tiny_model() {
  static const Model model = [] {
    const std::string path = testing::scratch_path("conformance.gguf");
    testing::TinyModel{.n_layers = 3, .n_heads = 6, .n_kv_heads = 2, .n_ctx_train = kTinyContext}.write(path);
    Result<Model> loaded = Model::load(path);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    return *std::move(loaded);
  }();
  return model;
}

inline std::vector<Token> random_prompt(int n, std::uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<Token> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(rng.between(3, tiny_model().info().n_vocab - 1));
  return tokens;
}

inline Session open_session(const SessionOptions& options) {
  Result<Session> session = Session::create(tiny_model(), options);
  if (!session) throw std::runtime_error(session.error().message);
  return *std::move(session);
}
inline SessionOptions options_of(std::string_view method, Budget budget = {}, std::optional<BudgetBase> base = {}) {
  SessionOptions options{.cache = {.method = std::string(method), .budget = {}}, .n_threads = 1};
  if (find_method(method)->takes_budget()) {
    options.cache.budget = budget;
    options.cache.budget_base = base;
  }
  return options;
}
inline Budget share(double ratio) { return {.ratio = ratio, .bytes = {}}; }
inline Budget bytes(std::size_t n) { return {.ratio = {}, .bytes = n}; }

inline Token best_token(std::span<const float> logits) {
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Logits after the prompt and after each further token.
using Logits = std::vector<std::vector<float>>;

struct Greedy {
  std::vector<Token> tokens;
  Logits logits;
};
inline void keep_logits(Session& session, Logits& logits) {
  const std::span<const float> now = session.logits();
  logits.emplace_back(now.begin(), now.end());
}
// The prompt, then n tokens of the session's own choice, of which the last is not fed.
inline Greedy greedy(Session& session, std::span<const Token> prompt, int n, int max_new) {
  Greedy result;
  const Result<void> fed = session.prefill(prompt, max_new);
  EXPECT_TRUE(fed) << fed.error().message;
  keep_logits(session, result.logits);
  for (int i = 0; fed && i < n; ++i) {
    result.tokens.push_back(best_token(session.logits()));
    if (i + 1 == n) break;
    const Result<void> decoded = session.decode(result.tokens.back());
    EXPECT_TRUE(decoded) << decoded.error().message;
    if (!decoded) break;
    keep_logits(session, result.logits);
  }
  return result;
}

inline std::vector<std::string_view> every_method() {
  std::vector<std::string_view> names;
  for (const Method& method : methods()) names.push_back(method.name);
  return names;
}
inline std::string method_test_name(const ::testing::TestParamInfo<std::string_view>& one) {
  std::string name(one.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace qevict
