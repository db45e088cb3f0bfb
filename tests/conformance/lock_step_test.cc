// Caches in lock-step are the caches of as many sessions.
#include "qevict/lock_step.h"

#include "conformance/sessions.h"

namespace qevict {
namespace {

constexpr int kPrompt = 230, kSteps = 60;

std::vector<CacheConfig> every_cache() {
  std::vector<CacheConfig> caches;
  for (const std::string_view name : every_method()) caches.push_back(options_of(name, share(0.3)).cache);
  return caches;
}

LockStep open_lock_step(int n_threads) {
  Result<LockStep> all = LockStep::create(tiny_model(), {.caches = every_cache(), .n_threads = n_threads});
  if (!all) throw std::runtime_error(all.error().message);
  return *std::move(all);
}

TEST(LockStep, IsTheSessionsOfItsCaches) {
  const std::vector<Token> prompt = random_prompt(kPrompt), text = random_prompt(kSteps, 2);
  LockStep all = open_lock_step(2);
  ASSERT_TRUE(all.prefill(prompt, kSteps));
  std::vector<Logits> logits(all.size());
  for (const Token token : text) {
    ASSERT_TRUE(all.decode(token));
    for (std::size_t i = 0; i < all.size(); ++i) logits[i].emplace_back(all.logits(i).begin(), all.logits(i).end());
  }
  const std::vector<std::string_view> names = every_method();
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(names[i]);
    Session session = open_session(options_of(names[i], share(0.3)));
    // Products of many rows round in another order than those of one, and a number may fall to the next code.
    const float tolerance = find_method(names[i])->codec.empty() ? 2e-3f : 2e-2f;
    ASSERT_TRUE(session.prefill(prompt, kSteps));
    for (std::size_t step = 0; step < text.size(); ++step) {
      ASSERT_TRUE(session.decode(text[step]));
      for (std::size_t t = 0; t < session.logits().size(); ++t)
        ASSERT_NEAR(session.logits()[t], logits[i][step][t], tolerance) << "step " << step;
    }
    const CacheReport got = all.report(i), want = session.report();
    EXPECT_EQ(got.bytes.total(), want.bytes.total());
    EXPECT_EQ(got.bytes_peak, want.bytes_peak);
    EXPECT_EQ(got.evictions, want.evictions);
    EXPECT_EQ(got.demotions, want.demotions);
    EXPECT_EQ(got.routings, want.routings);
    EXPECT_EQ(got.ratio_mean, want.ratio_mean);
  }
}

TEST(LockStep, ThreadsAndAResetChangeNothing) {
  std::vector<std::vector<float>> expected;
  for (const int threads : {1, 3, 2}) {
    LockStep all = open_lock_step(threads);
    for (int run = 0; run < 2; ++run) {
      all.reset();
      ASSERT_TRUE(all.prefill(random_prompt(kPrompt), kSteps));
      for (const Token token : random_prompt(kSteps, 2)) ASSERT_TRUE(all.decode(token));
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::vector<float> logits(all.logits(i).begin(), all.logits(i).end());
        if (expected.size() < all.size()) expected.push_back(logits);
        EXPECT_EQ(logits, expected[i]) << every_method()[i] << ", bit for bit";
      }
    }
  }
}

TEST(LockStep, RefusesMistakes) {
  EXPECT_FALSE(LockStep::create(tiny_model(), {.caches = {}}));
  EXPECT_FALSE(LockStep::create(tiny_model(), {.caches = {{.method = "no such"}}}));
  const Result<LockStep> small = LockStep::create(tiny_model(), {.caches = {{.method = "r1", .budget = bytes(100)}}});
  ASSERT_TRUE(small);
  LockStep all = open_lock_step(1);
  EXPECT_EQ(all.decode(1).error().kind, Error::Kind::invalid) << "a prompt comes first";
  EXPECT_EQ(all.prefill({}, 5).error().kind, Error::Kind::invalid);
  EXPECT_EQ(all.prefill(random_prompt(kTinyContext + 1), 5).error().kind, Error::Kind::too_long);
  ASSERT_TRUE(all.prefill(random_prompt(kPrompt), kSteps));
  EXPECT_EQ(all.prefill(random_prompt(kPrompt), kSteps).error().kind, Error::Kind::invalid) << "one prompt";
  EXPECT_EQ(all.decode(-1).error().kind, Error::Kind::invalid);
}

}  // namespace
}  // namespace qevict
