#include "eval/generation.h"

#include <gtest/gtest.h>

#include <numeric>

namespace qevict {
namespace {

TEST(Agreement, OfEqualTexts) {
  const std::vector<Token> tokens(100, 7);
  const Agreement agreement = compare_tokens(tokens, tokens);
  EXPECT_EQ(agreement.first_difference, 100);
  EXPECT_EQ(agreement.equal_64, 1);
  EXPECT_EQ(agreement.equal_256, 1);
  EXPECT_EQ(agreement.before_first_difference, 1);
}

TEST(Agreement, CountsEqualPlacesAlsoAfterTheFirstDifference) {
  std::vector<Token> base(400);
  std::iota(base.begin(), base.end(), 0);
  std::vector<Token> tested = base;
  tested[32] = -1;
  for (std::size_t i = 128; i < 400; ++i) tested[i] = -1;
  const Agreement agreement = compare_tokens(base, tested);
  EXPECT_EQ(agreement.first_difference, 32);
  EXPECT_EQ(agreement.equal_64, 63 / 64.0);
  EXPECT_EQ(agreement.equal_256, 127 / 256.0);
  EXPECT_EQ(agreement.before_first_difference, 32 / 400.0);
}

TEST(DistinctNgrams, CountsDifferentOnesOverAll) {
  std::vector<Token> ascending(50);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(distinct_ngrams(ascending, 4), 1);
  EXPECT_EQ(distinct_ngrams(std::vector<Token>(50, 3), 4), 1 / 47.0);
  EXPECT_EQ(distinct_ngrams(std::vector<Token>{1, 2, 1, 2, 1, 2, 1}, 4), 2 / 4.0);
  EXPECT_EQ(distinct_ngrams(std::vector<Token>{1, 1, 2, 1, 1}, 1), 2 / 5.0);
  EXPECT_EQ(distinct_ngrams(std::vector<Token>{5, 5, 5, 5}, 4), 1);
}

}  // namespace
}  // namespace qevict
