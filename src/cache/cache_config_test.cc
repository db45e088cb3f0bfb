#include "qevict/cache_config.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

TEST(BudgetText, ReadsSharesAndBytes) {
  EXPECT_EQ(Budget::parse("20%")->ratio, 0.2);
  EXPECT_EQ(Budget::parse("100%")->ratio, 1.0);
  EXPECT_EQ(Budget::parse("0.5%")->ratio, 0.005);
  EXPECT_EQ(Budget::parse("64MiB")->bytes, std::size_t{64} << 20);
  EXPECT_EQ(Budget::parse("1.5GiB")->bytes, std::size_t{3} << 29);
  EXPECT_EQ(Budget::parse("8000000")->bytes, 8000000u);
  EXPECT_EQ(Budget::parse("2MB")->bytes, 2000000u);
  EXPECT_EQ(Budget::parse("20%")->to_string(), "20%");
  EXPECT_EQ(Budget::parse("64MiB")->to_string(), "64MiB");
}

TEST(BudgetText, RefusesNonsenseNamingIt) {
  for (const char* text : {"0%", "0", "-5%", "-1", "101%", "abc", "", "%", "20 %", "20%%", "5XB", "nan", "inf", "1e3",
                           "0.2B", "99999999999999999999GiB", "0.00000001%"}) {
    const auto budget = Budget::parse(text);
    ASSERT_FALSE(budget) << text;
    EXPECT_EQ(budget.error().kind, Error::Kind::invalid);
    EXPECT_NE(budget.error().message.find(text), std::string::npos);
  }
}

TEST(RecentText, ReadsTokensAndShares) {
  EXPECT_EQ(Recent::parse("auto")->kind, Recent::Kind::automatic);
  EXPECT_EQ(Recent::parse("64")->value, 64);
  EXPECT_EQ(Recent::parse("25%")->value, 250);
  EXPECT_EQ(Recent::parse("25%")->kind, Recent::Kind::per_mille);
  for (const char* text : {"", "x", "-1", "1.5", "100%", "-3%", "64tokens", "1e9"})
    EXPECT_FALSE(Recent::parse(text)) << text;
}

}  // namespace
}  // namespace qevict
