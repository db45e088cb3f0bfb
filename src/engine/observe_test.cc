#include "engine/observe.h"

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace qevict {
namespace {

constexpr int kContext = 512, kTokens = 200, kSteps = 29;

struct Kind {
  const char* method;
  const char* ranking;
};
class Observed : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Observed,
                         ::testing::Values(Kind{"snapkv", "snapkv"}, Kind{"r2", "snapkv"}, Kind{"qevict", "snapkv"},
                                           Kind{"qevict-paper", "defensive"}, Kind{"r4", "snapkv-max7"}));

// Against a double-precision softmax over what the cache holds, with the queries as they were fed.
TEST_P(Observed, AttentionIsThatOfTheLastQueriesOnWhatIsHeld) {
  CacheConfig config{.method = GetParam().method, .budget = {}};
  config.budget.ratio = 0.5;
  config.ranking = GetParam().ranking;
  const CacheSettings settings = settings_of(config, kContext);
  const ModelShape model = synthetic_shape(1, 2, 3, 64);
  SyntheticSequence sequence(model, settings, kContext);
  ASSERT_TRUE(sequence.prefill(kTokens, 60));
  for (int step = 0; step < kSteps; ++step) ASSERT_TRUE(sequence.decode());
  const CacheShape& shape = sequence.cache().tiers().shape();
  const Zones& zones = sequence.cache().tiers().rule().zones;
  const int n_tokens = kTokens + kSteps;
  for (int h = 0; h < 2; ++h) {
    const HeadCache& head = sequence.cache().tiers().head(0, h);
    ASSERT_TRUE(head.routed());
    ASSERT_EQ(head.query_rows(), 32);
    const TokenView tail = head.tail();
    ASSERT_GE(tail.n, 32) << "each row's own token is among the newest";
    const std::vector<Candidate> windows = head.windows();
    const Observation got = observe(*settings.ranking, head, shape, zones, tail, windows, model.attention_scale);
    ASSERT_EQ(got.n, static_cast<int>(windows.size()) * zones.window);
    const TierView past(head);
    for (int t = 0; t < got.rows; ++t) {
      const int age = got.rows - 1 - t;
      std::vector<float> query = sequence.rows_of('q', 0, n_tokens - 1 - age, 1);
      for (float& q : query) q = to_float(to_half(q));
      const ReferenceRow want = attend_row_reference(
          {.key_dim = 64, .value_dim = 64, .group = 3}, &past.view, tail.keys.data(), tail.values.data(), tail.n - age,
          std::span(query).subspan(static_cast<std::size_t>(h) * 192, 192), model.attention_scale);
      for (int g = 0; g < 3; ++g) {
        std::size_t full = static_cast<std::size_t>(head.sink_tokens());
        std::size_t code = full + static_cast<std::size_t>(head.full_tokens());
        for (std::size_t i = 0; i < windows.size(); ++i) {
          for (int w = 0; w < zones.window; ++w) {
            const std::size_t at = windows[i].tier == Tier::full ? full++ : code++;
            ASSERT_NEAR(got.row(t, g)[i * static_cast<std::size_t>(zones.window) + static_cast<std::size_t>(w)],
                        want.probability[static_cast<std::size_t>(g) * want.n_tokens + at], 2e-5)
                << "row " << t << ", window " << windows[i].window;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace qevict
