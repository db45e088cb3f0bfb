#include "ranking/expected.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace qevict {
namespace {

// baselines.md T-EA: D = 2, no rotation, mean (1, 0), covariance diag(.5, 2).
TEST(Expected, LogitsOfTheExample) {
  const QueryDistribution queries{.mean = {1, 0}, .covariance = {.5, 0, 0, 2}};
  const std::vector<float> keys = {1, 0, 0, 1, -1, 1, 1, 1};
  const std::vector<double> z = expected_logits(queries, keys, 1 / std::sqrt(2.0));
  const double want[] = {.832107, .5, -.082107, 1.332107};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(z[i], want[i], 1e-6) << i;
}

// Against a plain mean over queries drawn from the same distribution and turned to the positions to come.
TEST(Expected, IsTheMeanOverTurnedQueries) {
  constexpr int kDim = 8, kTokens = 40, kRows = 4000;
  Rope rope;
  for (int pair = 0; pair < kDim / 2; ++pair) rope.frequency.push_back(0.02f / static_cast<float>(1 + 8 * pair));
  Rng rng(3);
  std::vector<float> mean(kDim);
  for (float& m : mean) m = static_cast<float>(rng.normal());
  QueryStatistics statistics;
  const double scale = 1 / std::sqrt(8.0);
  statistics.begin(1, kDim, scale);
  std::vector<float> q;
  for (int row = 0; row < kRows; ++row) {
    std::vector<float> query(kDim);
    for (int d = 0; d < kDim; ++d)
      query[static_cast<std::size_t>(d)] = mean[static_cast<std::size_t>(d)] + 0.3f * static_cast<float>(rng.normal());
    rope.rotate(query, row);
    q.insert(q.end(), query.begin(), query.end());
  }
  for (int begin = 0; begin < kRows; begin += 500) statistics.add(q.data() + begin * kDim, 500, begin, rope, 0, 1);

  std::vector<Half> keys;
  std::vector<float> plain;
  for (int i = 0; i < kTokens * kDim; ++i) {
    keys.push_back(to_half(static_cast<float>(rng.normal())));
    plain.push_back(to_float(keys.back()));
  }
  const std::vector<float> got = statistics.probabilities(0, 1, keys, 4, rope);
  // log E[exp] of one normal whose mean is the mean of the turned means.
  std::vector<double> turned(kDim);
  for (int t = 0; t < QueryStatistics::kHorizon; ++t) {
    std::vector<float> query = mean;
    rope.rotate(query, kTokens + t);
    for (int d = 0; d < kDim; ++d) turned[static_cast<std::size_t>(d)] += query[static_cast<std::size_t>(d)] / 512.0;
  }
  double total = 0;
  std::vector<double> want(kTokens);
  for (int i = 4; i < kTokens; ++i) {
    double dot = 0, square = 0;
    for (int d = 0; d < kDim; ++d) {
      const auto k = static_cast<double>(plain[static_cast<std::size_t>(i * kDim + d)]);
      dot += turned[static_cast<std::size_t>(d)] * k;
      square += k * k;
    }
    // The mean of rotations is nearly one here for slow pairs, and shrinks the fast one.
    want[static_cast<std::size_t>(i)] = std::exp(dot * scale + 0.09 * square * scale * scale / 2);
    total += want[static_cast<std::size_t>(i)];
  }
  double worst = 0;
  for (int i = 4; i < kTokens; ++i) {
    const auto at = static_cast<std::size_t>(i);
    worst = std::max(worst, std::abs(static_cast<double>(got[at]) - want[at] / total) / (want[at] / total));
  }
  EXPECT_LT(worst, 0.1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], 0.0f) << "sinks are not ranked";
}

}  // namespace
}  // namespace qevict
