// Later turns, the end of the context, and what errors leave behind.
#include "conformance/sessions.h"

namespace qevict {
namespace {

class Turns : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Rows, Turns, ::testing::ValuesIn(every_method()), method_test_name);

float most_difference(std::span<const float> a, std::span<const float> b) {
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

void feed_all(Session& session, std::span<const Token> tokens) {
  for (const Token token : tokens) ASSERT_TRUE(session.decode(token));
}

// Prompt and further turns, or everything at once, or one prompt token and the rest decoded: the same under `full`.
TEST(Turns, HowTokensAreFedChangesNothingUnderFull) {
  const std::vector<Token> tokens = random_prompt(240);
  const std::span<const Token> all = tokens;
  Session whole = open_session(options_of("full"));
  ASSERT_TRUE(whole.prefill(all, 10));
  Session turns = open_session(options_of("full"));
  ASSERT_TRUE(turns.prefill(all.first(90), 10));
  feed_all(turns, all.subspan(90, 10));
  ASSERT_TRUE(turns.prefill(all.subspan(100, 1), 10));
  ASSERT_TRUE(turns.prefill(all.subspan(101, 99), 10));
  feed_all(turns, all.subspan(200, 20));
  ASSERT_TRUE(turns.prefill(all.subspan(220, 20), 10));
  Session decoded = open_session(options_of("full"));
  ASSERT_TRUE(decoded.prefill(all.first(1), -1));
  feed_all(decoded, all.subspan(1));
  for (Session* session : {&turns, &decoded}) {
    EXPECT_EQ(session->n_tokens(), 240);
    EXPECT_LE(most_difference(session->logits(), whole.logits()), 3e-4f);
    EXPECT_EQ(best_token(session->logits()), best_token(whole.logits()));
  }
}

TEST_P(Turns, KeepTheirBudget) {
  for (const auto& [budget, base] : {std::pair<Budget, std::optional<BudgetBase>>{share(0.1), BudgetBase::context},
                                     {share(0.2), BudgetBase::current},
                                     {share(0.2), {}},
                                     {bytes(200000), {}}}) {
    SessionOptions options = options_of(GetParam(), budget, base);
    options.chunk_tokens = 32;
    Session session = open_session(options);
    for (const int turn : {50, 120, 1, 9, 200}) {
      ASSERT_TRUE(session.prefill(random_prompt(turn, static_cast<std::uint64_t>(turn)), -1));
      for (int step = 0; step < 15; ++step) {
        const CacheReport report = session.report();
        ASSERT_LE(report.bytes.total(), report.budget_effective);
        ASSERT_TRUE(session.decode(best_token(session.logits())));
      }
    }
    EXPECT_EQ(session.n_tokens(), 380 + 5 * 15);
    EXPECT_EQ(session.report().compressing, find_method(GetParam())->compresses);
  }
}

TEST_P(Turns, EveryRankingBearsThem) {
  if (!find_method(GetParam())->compresses) return;
  for (const std::string_view ranking : ranking_names()) {
    SessionOptions options = options_of(GetParam(), share(0.25));
    options.cache.ranking = std::string(ranking);
    Session session = open_session(options);
    for (const int turn : {100, 40}) {
      const Result<void> fed = session.prefill(random_prompt(turn), -1);
      ASSERT_TRUE(fed) << ranking << ": " << fed.error().message;
      for (int step = 0; step < 20; ++step) ASSERT_TRUE(session.decode(best_token(session.logits())));
    }
  }
}

TEST_P(Turns, StopWhereTheContextEnds) {
  SessionOptions options = options_of(GetParam(), share(0.3), BudgetBase::context);
  options.n_ctx = 100;
  Session session = open_session(options);
  const Result<void> too_long = session.prefill(random_prompt(101), 0);
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().kind, Error::Kind::too_long);
  EXPECT_NE(too_long.error().message.find("101"), std::string::npos) << too_long.error().message;
  EXPECT_NE(too_long.error().message.find("100"), std::string::npos) << too_long.error().message;
  ASSERT_TRUE(session.prefill(random_prompt(98), -1));
  ASSERT_TRUE(session.decode(5));
  EXPECT_FALSE(session.prefill(random_prompt(2), -1));
  ASSERT_TRUE(session.decode(5));
  const Result<void> full = session.decode(5);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().kind, Error::Kind::too_long);
  EXPECT_EQ(session.n_tokens(), 100);
  session.reset();
  ASSERT_TRUE(session.prefill(random_prompt(100), -1));
}

// Mistakes of the caller's are refused and change nothing.
TEST_P(Turns, CallersErrorsLeaveTheSessionAsItWas) {
  const std::vector<Token> prompt = random_prompt(150);
  Session clean = open_session(options_of(GetParam(), share(0.3)));
  const Greedy expected = greedy(clean, prompt, 20, 20);
  Session session = open_session(options_of(GetParam(), share(0.3)));
  const int n_vocab = tiny_model().info().n_vocab;
  const auto make_mistakes = [&] {
    EXPECT_EQ(session.prefill({}, 5).error().kind, Error::Kind::invalid);
    EXPECT_EQ(session.prefill(std::vector<Token>{1, 2, n_vocab}, 5).error().kind, Error::Kind::invalid);
    EXPECT_EQ(session.prefill(std::vector<Token>{-1}, 5).error().kind, Error::Kind::invalid);
    EXPECT_EQ(session.prefill(random_prompt(kTinyContext + 1), 5).error().kind, Error::Kind::too_long);
    EXPECT_EQ(session.decode(-1).error().kind, Error::Kind::invalid);
    EXPECT_EQ(session.decode(n_vocab).error().kind, Error::Kind::invalid);
  };
  EXPECT_EQ(session.decode(1).error().kind, Error::Kind::invalid) << "decode needs a prompt";
  make_mistakes();
  ASSERT_TRUE(session.prefill(prompt, 20));
  for (std::size_t i = 0; i + 1 < expected.tokens.size(); ++i) {
    if (i % 5 == 2) make_mistakes();
    ASSERT_TRUE(session.decode(expected.tokens[i]));
    const std::span<const float> logits = session.logits();
    ASSERT_TRUE(std::equal(logits.begin(), logits.end(), expected.logits[i + 1].begin())) << i;
  }
}

// A budget that holds just what was promised refuses more, and goes on when more is promised.
TEST_P(Turns, MoreThanWasPromisedIsRefusedWhereItDoesNotFit) {
  if (!find_method(GetParam())->takes_budget()) return;
  Session session = open_session(options_of(GetParam(), share(1)));
  ASSERT_TRUE(session.prefill(random_prompt(30), 5));
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(session.decode(7));
  const Result<void> refused = session.decode(7);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, Error::Kind::invalid);
  EXPECT_NE(refused.error().message.find("35"), std::string::npos) << refused.error().message;
  const Result<void> more = session.prefill(random_prompt(4), 5);
  ASSERT_TRUE(more) << more.error().message;
  ASSERT_TRUE(session.decode(7));
}

TEST_P(Turns, AnInterruptedPromptNeedsAReset) {
  Session session = open_session(options_of(GetParam(), share(0.3)));
  std::int64_t last = 0;
  const Result<void> stopped = session.prefill(random_prompt(200), 10, [&](std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, 3 * 200);
    last = done;
    return done < 300;
  });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().kind, Error::Kind::interrupted);
  EXPECT_FALSE(session.prefill(random_prompt(10), 10));
  EXPECT_FALSE(session.decode(5));
  session.reset();
  const Greedy after = greedy(session, random_prompt(100), 20, 20);
  Session fresh = open_session(options_of(GetParam(), share(0.3)));
  EXPECT_TRUE(after.logits == greedy(fresh, random_prompt(100), 20, 20).logits);
}

TEST(Turns, TheReportCountsWhatHappened) {
  SessionOptions options = options_of("qevict-paper", share(0.2));
  options.cache.ranking = "decayed";  // scores that drift, so that windows return
  Session session = open_session(options);
  greedy(session, random_prompt(400), 101, 100);
  const CacheReport report = session.report();
  EXPECT_EQ(report.routings, 1 + 100 / 8);
  EXPECT_GT(report.promotions, 0);
  EXPECT_GT(report.demotions, report.windows_quantized);
  EXPECT_EQ(report.evictions, report.windows_evicted);
  EXPECT_EQ(report.windows_full, static_cast<std::int64_t>(kTinyHeads) * report.full_slots);
  EXPECT_EQ(report.windows_quantized, static_cast<std::int64_t>(kTinyHeads) * report.quantized_slots);
  EXPECT_EQ(report.bytes_full, 500 * kTinyHeads * kTinyTokenBytes);
  EXPECT_DOUBLE_EQ(report.ratio_peak, static_cast<double>(report.bytes_peak) / static_cast<double>(report.bytes_full));
  EXPECT_LE(report.ratio_peak, 0.2);
  EXPECT_GT(report.ratio_mean, report.ratio_peak * 0.9);
  EXPECT_GT(report.workspace_peak, 0u);
  EXPECT_GT(report.bytes_prefill_end, 0u);
}

}  // namespace
}  // namespace qevict
