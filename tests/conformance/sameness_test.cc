// What must change nothing: a budget for everything, threads, how a prompt is cut, a reset.
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
  if (!find_method(GetParam())->compresses) return;
  Session session = open_session(options_of(GetParam(), bytes(150 * kTinyHeads * (kTinyTokenBytes + 4))));
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

// ggml multiplies a single row in another way than many, so that chunks of one token only come close.
TEST_P(Sameness, ChunksOfThePromptChangeNothing) {
  Greedy expected;
  CacheReport kept;
  for (const int chunk : {512, 64, 7, 1}) {
    SCOPED_TRACE(::testing::Message() << "chunks of " << chunk);
    SessionOptions options = options_of(GetParam(), share(0.3));
    options.chunk_tokens = chunk;
    Session session = open_session(options);
    const Greedy text = greedy(session, random_prompt(201), 40, 40);
    const CacheReport report = session.report();
    if (expected.tokens.empty()) {
      expected = text;
      kept = report;
    }
    EXPECT_EQ(text.tokens, expected.tokens);
    EXPECT_EQ(report.promotions, kept.promotions);
    EXPECT_EQ(report.demotions, kept.demotions);
    EXPECT_EQ(report.evictions, kept.evictions);
    if (chunk > 1) {
      EXPECT_TRUE(text.logits == expected.logits) << "bit for bit";
      continue;
    }
    float most = 0;
    for (std::size_t i = 0; i < text.logits.size(); ++i) {
      for (std::size_t t = 0; t < text.logits[i].size(); ++t) {
        most = std::max(most, std::abs(text.logits[i][t] - expected.logits[i][t]));
      }
    }
    EXPECT_LE(most, find_method(GetParam())->codec.empty() ? 3e-4f : 3e-2f);  // a code on a border may flip
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
