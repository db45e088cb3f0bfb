#include "bench_report.h"

#include <gtest/gtest.h>

namespace qevict::app {
namespace {

TEST(BenchReport, SpreadUsesTheSamplesDeviation) {
  const Json json = spread({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(json["median"].get<double>(), 2.5);
  EXPECT_DOUBLE_EQ(json["mean"].get<double>(), 2.5);
  EXPECT_NEAR(json["sd"].get<double>(), 1.290994, 1e-6);
  EXPECT_DOUBLE_EQ(spread({7})["sd"].get<double>(), 0);
}

TEST(BenchReport, CsvHasAColumnForEveryFieldOfAnyRow) {
  const std::vector<Json> rows = {{{"a", 1}, {"b", {{"median", 2}}}}, {{"a", "x,\"y\""}, {"c", 3}}};
  EXPECT_EQ(bench_text(rows, BenchFormat::csv), "a,b.median,c\n1,2,\n\"x,\"\"y\"\"\",,3\n");
}

TEST(Summary, CountsAndBytesReadWell) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1234567), "1,234,567");
  EXPECT_EQ(count_text(-123456), "-123,456");
  EXPECT_EQ(bytes_text(1000), "1000 B");
  EXPECT_EQ(bytes_text(64u << 20), "64.0 MiB");
}

TEST(Summary, JsonIsValidWhateverTheBytes) {
  EXPECT_EQ(Json::parse(to_text(Json{{"text", "a\xff"}}))["text"].get<std::string>(), "a\xEF\xBF\xBD");
}

}  // namespace
}  // namespace qevict::app
