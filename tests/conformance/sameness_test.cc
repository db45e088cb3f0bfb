// What must change nothing: a budget for everything, threads, how a prompt is cut, a reset.
#include <map>

#include "conformance/sessions.h"

namespace qevict {
namespace {

class Sameness : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Rows, Sameness, ::testing::ValuesIn(every_method()), method_test_name);

constexpr int kPrompt = 120;
constexpr int kNew = 60;

const Greedy& full_text() {
  static const Greedy text = [] {
    Session session = open_session(options_of("full"));
    return greedy(session, random_prompt(kPrompt), kNew, kNew);
  }();
  return text;
}

TEST_P(Sameness, ABudgetForEverythingGivesExactlyFullsText) {
  if (find_method(GetParam())->quantizes_everything) return;
  const std::size_t request = (kPrompt + kNew) * kTinyHeads * kTinyTokenBytes;
  struct Way {
    Budget budget;
    std::optional<BudgetBase> base;
    int max_new;
  };
  const Way ways[] = {{share(1), {}, kNew},
                      {share(1), BudgetBase::context, kNew},
                      {share(1), BudgetBase::current, -1},
                      {share(0.2), BudgetBase::context, kNew},  // of 1024 tokens
                      {bytes(request), {}, kNew},
                      {bytes(kTinyContext * kTinyHeads * kTinyTokenBytes), {}, -1}};
  for (const Way& way : ways) {
    Session session = open_session(options_of(GetParam(), way.budget, way.base));
    const Greedy text = greedy(session, random_prompt(kPrompt), kNew, way.max_new);
    EXPECT_EQ(text.tokens, full_text().tokens);
    EXPECT_TRUE(text.logits == full_text().logits) << "bit for bit";
    EXPECT_FALSE(session.report().compressing);
    EXPECT_EQ(session.report().bytes.metadata, 0u);
  }
}

// Not quite enough for everything: accumulators are kept, nothing moves, and the text is still full's.
TEST_P(Sameness, WhileEverythingFitsNothingIsCompressed) {
  if (!find_method(GetParam())->takes_budget()) return;
  Session session = open_session(
      options_of(GetParam(), bytes(150 * kTinyHeads * (kTinyTokenBytes + 4) + tiny_query_bytes(GetParam()))));
  const Greedy text = greedy(session, random_prompt(kPrompt), 30, kNew);
  EXPECT_FALSE(session.report().compressing);
  EXPECT_EQ(session.report().demotions + session.report().evictions, 0);
  for (std::size_t i = 0; i < text.logits.size(); ++i) {
    ASSERT_TRUE(text.logits[i] == full_text().logits[i]) << "bit for bit, token " << i;
  }
}

TEST_P(Sameness, ThreadsChangeNothing) {
  Logits expected;
  for (const int threads : {1, 2, 3}) {
    SessionOptions options = options_of(GetParam(), share(0.3));
    options.n_threads = threads;
    Session session = open_session(options);
    const Greedy text = greedy(session, random_prompt(120), 25, 25);
    if (expected.empty()) expected = text.logits;
    EXPECT_TRUE(text.logits == expected) << threads << " threads, bit for bit";
  }
}

// Text after a prompt of 201 tokens in chunks, and the report at the prompt's end.
struct Chunked {
  Greedy text;
  CacheReport prompt;
};
Chunked in_chunks(std::string_view method, int chunk) {
  SessionOptions options = options_of(method, share(0.3));
  options.chunk_tokens = chunk;
  Session session = open_session(options);
  EXPECT_TRUE(session.prefill(random_prompt(201), 40));
  Chunked result{.text = {}, .prompt = session.report()};
  keep_logits(session, result.text.logits);
  for (int i = 0; i < 40; ++i) {
    result.text.tokens.push_back(best_token(session.logits()));
    EXPECT_TRUE(session.decode(result.text.tokens.back()));
    keep_logits(session, result.text.logits);
  }
  return result;
}

// Bit for bit wherever ggml's own matmul makes no difference, which `full` tells. (It multiplies a single row in
// another way than many.)
TEST_P(Sameness, ChunksOfThePromptChangeNothing) {
  static std::map<int, Logits> full;
  for (const int chunk : {512, 64, 7, 1}) {
    if (full.count(chunk) == 0) full[chunk] = in_chunks("full", chunk).text.logits;
  }
  const Chunked expected = in_chunks(GetParam(), 512);
  for (const int chunk : {64, 7, 1}) {
    SCOPED_TRACE(::testing::Message() << "chunks of " << chunk);
    const Chunked got = in_chunks(GetParam(), chunk);
    EXPECT_EQ(got.text.tokens[0], expected.text.tokens[0]);
    EXPECT_EQ(got.prompt.bytes.total(), expected.prompt.bytes.total());
    EXPECT_EQ(got.prompt.demotions, expected.prompt.demotions);
    EXPECT_EQ(got.prompt.evictions, expected.prompt.evictions);
    if (full[chunk] == full[512]) {
      EXPECT_TRUE(got.text.logits == expected.text.logits) << "bit for bit";
    }
    float most = 0;
    for (std::size_t t = 0; t < got.text.logits[0].size(); ++t) {
      most = std::max(most, std::abs(got.text.logits[0][t] - expected.text.logits[0][t]));
    }
    EXPECT_LE(most, 3e-4f) << "prefill attention is exact";
  }
}

TEST_P(Sameness, AResetSessionIsAFreshOne) {
  const SessionOptions options = options_of(GetParam(), share(0.3));
  Session used = open_session(options);
  greedy(used, random_prompt(300, 7), 40, 40);
  used.reset();
  EXPECT_EQ(used.n_tokens(), 0);
  EXPECT_EQ(used.report().bytes.total(), 0u);
  Session fresh = open_session(options);
  const Greedy after = greedy(used, random_prompt(200), 50, 50);
  const Greedy expected = greedy(fresh, random_prompt(200), 50, 50);
  EXPECT_TRUE(after.logits == expected.logits) << "bit for bit";
  const CacheReport a = used.report();
  const CacheReport b = fresh.report();
  EXPECT_EQ(a.bytes_peak, b.bytes_peak);
  EXPECT_EQ(a.promotions, b.promotions);
  EXPECT_EQ(a.evictions, b.evictions);
  EXPECT_EQ(a.routings, b.routings);
}

TEST_P(Sameness, SessionsOfOneModelDoNotDisturbEachOther) {
  const SessionOptions options = options_of(GetParam(), share(0.3));
  Session alone = open_session(options);
  const Greedy expected = greedy(alone, random_prompt(200), 20, 40);
  Session first = open_session(options);
  Session second = open_session(options);
  ASSERT_TRUE(first.prefill(random_prompt(200), 40));
  ASSERT_TRUE(second.prefill(random_prompt(150, 9), 40));
  for (std::size_t i = 0; i + 1 < expected.tokens.size(); ++i) {
    ASSERT_TRUE(second.decode(best_token(second.logits())));
    ASSERT_TRUE(first.decode(expected.tokens[i]));
    const std::span<const float> logits = first.logits();
    ASSERT_TRUE(std::equal(logits.begin(), logits.end(), expected.logits[i + 1].begin())) << i;
  }
}

}  // namespace
}  // namespace qevict
