#include "ranking/ranking.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "ranking/key_norm.h"
#include "ranking/pnorm.h"

namespace qevict {
namespace {

// qevict-examples.md section 4: one KV head, two query heads, a prompt of 4 tokens, one decode step, windows of 2.
using Rows = std::vector<std::vector<float>>;
const Rows kHead0 = {{1}, {.6f, .4f}, {.5f, .2f, .3f}, {.4f, .1f, .2f, .3f}, {.3f, .1f, .2f, .1f, .3f}};
const Rows kHead1 = {{1}, {.8f, .2f}, {.3f, .4f, .3f}, {.2f, .3f, .1f, .4f}, {.1f, .1f, .4f, .3f, .1f}};
constexpr int kPrompt = 4;
constexpr float kUnit = 1e-6f;  // the table's last digit

std::vector<float> mean_row(std::size_t row) {
  std::vector<float> mean;
  for (std::size_t i = 0; i < kHead0[row].size(); ++i) mean.push_back((kHead0[row][i] + kHead1[row][i]) / 2);
  return mean;
}

std::vector<float> after_prefill(const ScoreRule& rule) {
  std::vector<float> scores(kPrompt);
  for (int row = 0; row < kPrompt; ++row) {
    const std::vector<float> attention = mean_row(static_cast<std::size_t>(row));
    for (std::size_t i = 0; i < attention.size(); ++i) scores[i] += rule.row_weight(row, kPrompt) * attention[i];
  }
  return scores;
}

std::vector<float> after_decode(const ScoreRule& rule) {
  std::vector<float> scores = after_prefill(rule);
  scores.push_back(0);
  const std::vector<float> attention = mean_row(kPrompt);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = rule.decay * scores[i] + attention[i];
  return scores;
}

float sum(const std::vector<float>& scores, std::size_t begin, std::size_t end) {
  float result = 0;
  for (std::size_t i = begin; i < end; ++i) result += scores[i];
  return result;
}

void expect_scores(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], kUnit) << "token " << i;
}
void expect_windows(const std::vector<float>& scores, float first, float second) {
  EXPECT_NEAR(sum(scores, 0, 2), first, 2 * kUnit);
  EXPECT_NEAR(sum(scores, 2, 4), second, 2 * kUnit);
}

TEST(QScore, Cumulative) {
  const ScoreRule rule = find_ranking("cumulative")->rule;
  EXPECT_TRUE(rule.uniform());
  expect_scores(after_prefill(rule), {2.4f, 0.8f, 0.45f, 0.35f});
  expect_windows(after_prefill(rule), 3.2f, 0.8f);
  expect_scores(after_decode(rule), {2.6f, 0.9f, 0.75f, 0.55f, 0.2f});
  expect_windows(after_decode(rule), 3.5f, 1.3f);
  EXPECT_NEAR(sum(after_prefill(rule), 0, 4), 4, kUnit);
  EXPECT_NEAR(sum(after_decode(rule), 0, 5), 5, kUnit);
}

TEST(QScore, Decayed) {
  const ScoreRule rule{.decay = 0.9f};
  EXPECT_FALSE(rule.uniform());
  EXPECT_FLOAT_EQ(rule.row_weight(0, kPrompt), 0.729f);
  EXPECT_FLOAT_EQ(rule.row_weight(1, kPrompt), 0.81f);
  EXPECT_FLOAT_EQ(rule.row_weight(3, kPrompt), 1.0f);
  expect_scores(after_prefill(rule), {1.956f, 0.713f, 0.42f, 0.35f});
  expect_windows(after_prefill(rule), 2.669f, 0.77f);
  expect_scores(after_decode(rule), {1.9604f, 0.7417f, 0.678f, 0.515f, 0.2f});
  expect_windows(after_decode(rule), 2.7021f, 1.193f);
  EXPECT_NEAR(sum(after_prefill(rule), 0, 4), 3.439f, 2 * kUnit);
  EXPECT_NEAR(sum(after_decode(rule), 0, 5), 4.0951f, 2 * kUnit);
  EXPECT_FLOAT_EQ(find_ranking("decayed")->rule.decay, 0.99f);
  EXPECT_EQ(find_ranking("decayed")->rule.observed_rows, 0);
}

TEST(QScore, Observed) {
  const ScoreRule rule{.decay = 0.9f, .observed_rows = 2};
  EXPECT_EQ(rule.row_weight(1, kPrompt), 0.0f);
  expect_scores(after_prefill(rule), {0.66f, 0.47f, 0.42f, 0.35f});
  expect_windows(after_prefill(rule), 1.13f, 0.77f);
  expect_scores(after_decode(rule), {0.794f, 0.523f, 0.678f, 0.515f, 0.2f});
  expect_windows(after_decode(rule), 1.317f, 1.193f);
  EXPECT_NEAR(sum(after_prefill(rule), 0, 4), 1.9f, 2 * kUnit);
  EXPECT_NEAR(sum(after_decode(rule), 0, 5), 2.71f, 2 * kUnit);
  // The product's row: 32 rows, or all of a shorter prompt.
  const ScoreRule product = find_ranking("observed")->rule;
  EXPECT_EQ(product.observed_rows, 32);
  EXPECT_EQ(product.row_weight(67, 100), 0.0f);
  EXPECT_GT(product.row_weight(68, 100), 0.7f);
  EXPECT_GT(product.row_weight(0, 32), 0.7f);
  EXPECT_FLOAT_EQ(product.decay, 0.99f);
}

TEST(QScore, Pnorm) {
  std::vector<float> sums(kPrompt);
  for (std::size_t row = 0; row < kPrompt; ++row) pnorm_add(std::span(sums).first(row + 1), mean_row(row));
  expect_scores(sums, {1.434f, 0.062f, 0.030375f, 0.042875f});
  const std::vector<float> prefill_norms = {1.127673f, 0.395789f, 0.312013f, 0.35f};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(pnorm_score({&sums[i], 1}), prefill_norms[i], kUnit) << i;
  EXPECT_NEAR(pnorm_score(std::span(sums).first(2)), 1.523462f, kUnit);
  EXPECT_NEAR(pnorm_score(std::span(sums).last(2)), 0.662013f, kUnit);

  sums.push_back(0);
  pnorm_add(sums, mean_row(kPrompt));
  expect_scores(sums, {1.442f, 0.063f, 0.057375f, 0.050875f, 0.008f});
  const std::vector<float> norms = {1.129766f, 0.397906f, 0.385692f, 0.370540f, 0.2f};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(pnorm_score({&sums[i], 1}), norms[i], kUnit) << i;
  EXPECT_NEAR(pnorm_score(std::span(sums).first(2)), 1.527672f, kUnit);
  EXPECT_NEAR(pnorm_score(std::span(sums).subspan(2, 2)), 0.756232f, kUnit);
  // A19: token norms summed, which ranks these two the other way round than one sum per window would.
  EXPECT_NEAR(pnorm_score(std::vector<float>{0.125f, 0}), 0.5f, kUnit);
  EXPECT_NEAR(pnorm_score(std::vector<float>{0.027f, 0.027f}), 0.6f, kUnit);
}

TEST(QScore, KeyNorm) { EXPECT_FLOAT_EQ(key_norm_score(std::vector<float>{3, 4, 0, 5, 6, 8, -5, 12}, 2), -8.25f); }

TEST(Rankings, RecencyIsTheAgeOfTheWindowAndKeepsNoScores) {
  const RankingRow& recency = *find_ranking("recency");
  EXPECT_FALSE(recency.rule.kept);
  std::vector<Candidate> candidates = {{.window = 7, .tier = Tier::full, .score = 9},
                                       {.window = 3, .tier = Tier::none, .score = 99}};
  recency.score(candidates, {});
  EXPECT_GT(candidates[0].score, candidates[1].score);
}

TEST(Rankings, EveryRowIsFoundByItsName) {
  std::set<std::string_view> names;
  for (const RankingRow& row : rankings()) {
    EXPECT_EQ(find_ranking(row.name), &row);
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.summary.empty()) << row.name;
    EXPECT_TRUE(row.rule.kept || row.score != nullptr || row.observe != nullptr)
        << row.name << " has nothing to rank by";
  }
  EXPECT_EQ(find_ranking("cumulativ"), nullptr);
}

}  // namespace
}  // namespace qevict
