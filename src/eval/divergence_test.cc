#include "eval/divergence.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

// evaluation.md 4.1: the worked vector.
TEST(Divergence, AgreesWithTheWorkedExample) {
  const std::vector<std::vector<float>> base = {{2, 1, 0}, {0, 3, 1}, {1, 1, 1}};
  const std::vector<std::vector<float>> tested = {{1.5f, 1.2f, 0.1f}, {0.5f, 1, 2}, {1, 0, 0}};
  std::vector<TokenDivergence> tokens;
  for (int i = 0; i < 3; ++i) {
    tokens.push_back(compare_logits(base[static_cast<std::size_t>(i)], tested[static_cast<std::size_t>(i)], i));
  }
  const double base_nll[] = {0.407606, 0.169846, 1.098612};
  const double tested_nll[] = {0.686835, 1.464369, 1.551445};
  const double kld[] = {0.053901, 0.846912, 0.119499};
  const double delta[] = {-0.162075, -0.612571, -0.121392};
  const bool same[] = {true, false, true};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(tokens[i].base_nll, base_nll[i], 1e-6);
    EXPECT_NEAR(tokens[i].tested_nll, tested_nll[i], 1e-6);
    EXPECT_NEAR(tokens[i].kld, kld[i], 1e-6);
    EXPECT_NEAR(tokens[i].delta_p, delta[i], 1e-6);
    EXPECT_EQ(tokens[i].same_top, same[i]);
  }
  const DivergenceSummary summary = summarize(tokens);
  EXPECT_NEAR(summary.base_ppl.value, 1.748377, 1e-6);
  EXPECT_NEAR(summary.tested_ppl.value, 3.435684, 1e-6);
  EXPECT_NEAR(summary.ln_ppl_ratio.value, 0.675528, 1e-6);
  EXPECT_NEAR(summary.kld.value, 0.340104, 1e-6);
  EXPECT_NEAR(summary.kld_p99, 0.832364, 1e-6);
  EXPECT_NEAR(summary.kld_median, 0.119499, 1e-6);
  EXPECT_NEAR(summary.rms_delta_p.value, 0.372490, 1e-6);
  EXPECT_EQ(summary.kld.uncertainty, 0) << "ten values or fewer have no uncertainty";
}

TEST(Divergence, EqualLogitsDoNotDiverge) {
  const std::vector<float> logits = {0.5f, -3, 40, 2};
  const TokenDivergence token = compare_logits(logits, logits, 1);
  EXPECT_EQ(token.kld, 0);
  EXPECT_EQ(token.delta_p, 0);
  EXPECT_TRUE(token.same_top);
}

TEST(Percentile, IsLinearBetweenSortedValues) {
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0.25), 1.75);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0.9), 3.7);
  EXPECT_DOUBLE_EQ(percentile({7}, 0.99), 7);
}

}  // namespace
}  // namespace qevict
