// No row of the method table ever outgrows its bytes, whatever the prompt and the budget.
#include "cache/layout.h"
#include "conformance/sessions.h"
#include "engine/cache_settings.h"

namespace qevict {
namespace {

class Budgets : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Rows, Budgets, ::testing::ValuesIn(every_method()), method_test_name);

constexpr CacheShape kShape{.n_layers = 3, .n_kv_heads = 2, .key_dim = 64, .value_dim = 64, .group = 3};

// What the layout formulas of qevict.md section 2 say that a compressed cache allocates.
std::size_t formula_bytes(const SessionOptions& options, std::size_t budget, Raise raise) {
  const Result<CacheSettings> settings = CacheSettings::from(options.cache, kTinyContext);
  const Result<HeadLayout> layout = plan_layout(kShape, settings->rule, settings->recent, budget / kTinyHeads, raise);
  EXPECT_TRUE(layout);
  return layout ? layout->allocated_bytes() * kTinyHeads : 0;
}

void expect_within(const Session& session, const SessionOptions& options, std::size_t asked, Raise raise) {
  const CacheReport report = session.report();
  EXPECT_EQ(report.budget_bytes, asked);
  EXPECT_LE(report.bytes.total(), report.budget_effective);
  EXPECT_LE(report.bytes_peak, report.budget_effective);
  const Method& method = *find_method(options.cache.method);
  const bool alike = method.allocator == "equal" || method.allocator == "one-set";
  if (report.compressing && method.spending == Spending::fixed_share && alike) {
    EXPECT_EQ(report.bytes.total(), formula_bytes(options, asked, raise));
  }
}

TEST_P(Budgets, OfAShareIsNeverExceeded) {
  if (!find_method(GetParam())->takes_budget()) return;
  for (const double ratio : {0.05, 0.1, 0.2, 0.4, 0.6}) {
    for (const int n : {40, 300}) {
      SCOPED_TRACE(::testing::Message() << n << " tokens, " << ratio);
      const SessionOptions options = options_of(GetParam(), share(ratio));
      Session session = open_session(options);
      const std::size_t full = static_cast<std::size_t>(n + 50) * kTinyHeads * kTinyTokenBytes;
      const std::size_t asked = ratio_of(ratio, full);
      ASSERT_TRUE(session.prefill(random_prompt(n), 50));
      expect_within(session, options, asked, Raise::automatic_recent);
      const CacheReport report = session.report();
      EXPECT_EQ(report.bytes_full, full);
      const std::size_t layer =
          static_cast<std::size_t>((n + 63) / 64 * 64) * 2 * kTinyTokenBytes;  // kernels pad to 64
      EXPECT_LE(report.prefill_kv_peak, layer + report.budget_effective);
      for (int step = 0; step < 50; ++step) {
        ASSERT_TRUE(session.decode(best_token(session.logits())));
        expect_within(session, options, asked, Raise::automatic_recent);
        if (HasFailure()) return;
      }
      // Only budgets too small for any window are raised.
      EXPECT_EQ(session.report().budget_effective > asked, session.report().budget_effective != asked);
      if (n == 300 && ratio >= 0.4) {
        EXPECT_EQ(session.report().budget_effective, asked);
      }
      EXPECT_LE(session.report().ratio_peak,
                std::max(ratio, static_cast<double>(report.budget_effective) / static_cast<double>(full)));
    }
  }
}

TEST_P(Budgets, OfBytesIsNeverExceeded) {
  if (!find_method(GetParam())->takes_budget()) return;
  for (const std::size_t asked : {std::size_t{256} << 10, std::size_t{300000}}) {
    for (const int max_new : {50, -1}) {
      const SessionOptions options = options_of(GetParam(), bytes(asked));
      Session session = open_session(options);
      ASSERT_TRUE(session.prefill(random_prompt(300), max_new));
      for (int step = 0; step < 50; ++step) {
        expect_within(session, options, asked, Raise::never);
        EXPECT_EQ(session.report().budget_effective, asked);
        ASSERT_TRUE(session.decode(best_token(session.logits())));
      }
      EXPECT_TRUE(session.report().compressing);
    }
  }
}

TEST_P(Budgets, OfTheTokensSeenGrowsWithThem) {
  if (!find_method(GetParam())->takes_budget()) return;
  const SessionOptions options = options_of(GetParam(), share(0.2), BudgetBase::current);
  Session session = open_session(options);
  ASSERT_TRUE(session.prefill(random_prompt(20), -1));
  for (int n = 20; n < 260; ++n) {
    const CacheReport report = session.report();
    EXPECT_EQ(report.base_tokens, n);
    EXPECT_EQ(report.budget_bytes, ratio_of(0.2, static_cast<std::size_t>(n) * kTinyHeads * kTinyTokenBytes));
    ASSERT_LE(report.bytes.total(), report.budget_effective);
    ASSERT_TRUE(session.decode(best_token(session.logits())));
  }
  EXPECT_TRUE(session.report().compressing);
}

// A cache that is uncompressed when the prompt ends and has to be compressed later.
TEST_P(Budgets, AreKeptWhenDecodingOverflowsThem) {
  const Method& method = *find_method(GetParam());
  if (!method.takes_budget()) return;
  const std::size_t asked = 130 * kTinyHeads * (kTinyTokenBytes + 4) + tiny_query_bytes(GetParam());
  const SessionOptions options = options_of(GetParam(), bytes(asked));
  Session session = open_session(options);
  ASSERT_TRUE(session.prefill(random_prompt(60), 240));
  EXPECT_FALSE(session.report().compressing);
  for (int step = 0; step < 120; ++step) {
    ASSERT_TRUE(session.decode(best_token(session.logits())));
    expect_within(session, options, asked, Raise::never);
  }
  const CacheReport report = session.report();
  EXPECT_TRUE(report.compressing);
  EXPECT_GT(report.windows_evicted + report.windows_quantized, 0);
  EXPECT_EQ(report.tokens_evicted, report.windows_evicted * method.window_tokens);
}

// Robustness G05: any budget and any prompt leave a usable cache.
TEST_P(Budgets, OfEverySizeSuitEveryPromptLength) {
  for (const int n : {1, 2, 7, 8, 9, 17, 19, 20, 21, 22, 23, 24, 25, 26}) {
    for (const double ratio : {0.01, 0.05, 0.6, 0.99, 1.0}) {
      SCOPED_TRACE(::testing::Message() << n << " tokens, " << ratio);
      Session session = open_session(options_of(GetParam(), share(ratio)));
      const Greedy text = greedy(session, random_prompt(n), 30, 30);
      ASSERT_EQ(text.tokens.size(), 30u);
      const CacheReport report = session.report();
      EXPECT_LE(report.bytes_peak, report.budget_effective);
      EXPECT_EQ(session.n_tokens(), n + 29);
      if (report.compressing) {
        EXPECT_GE(report.full_slots + report.quantized_slots, 1);
      }
    }
  }
}

TEST_P(Budgets, OutsideTheirRangeAreRefused) {
  for (const Budget& budget : {share(0), share(-0.2), share(1.01), bytes(0), Budget{.ratio = 0.2, .bytes = 1000}}) {
    SessionOptions options{.cache = {.method = std::string(GetParam()), .budget = budget}};
    const Result<Session> refused = Session::create(tiny_model(), options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, Error::Kind::invalid);
  }
}

// Bytes, or a recent region given as a number, that leave no window are refused when the prompt is known, with the
// remedy.
TEST(Budgets, ThatLeaveNoWindowAreRefusedWithTheRemedy) {
  Session tiny = open_session(options_of("qevict-paper", bytes(20000)));
  const Result<void> refused = tiny.prefill(random_prompt(300), 50);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, Error::Kind::invalid);
  EXPECT_NE(refused.error().message.find("at least"), std::string::npos) << refused.error().message;
  SessionOptions options = options_of("qevict-paper", share(0.1));
  options.cache.recent = Recent{.kind = Recent::Kind::tokens, .value = 64};
  Session bound = open_session(options);
  const Result<void> no_room = bound.prefill(random_prompt(300), 50);
  ASSERT_FALSE(no_room);
  EXPECT_NE(no_room.error().message.find("64 recent"), std::string::npos) << no_room.error().message;
  // The session is as it was: a prompt whose budget does hold a window works.
  ASSERT_TRUE(bound.prefill(random_prompt(300), 700));
}

}  // namespace
}  // namespace qevict
