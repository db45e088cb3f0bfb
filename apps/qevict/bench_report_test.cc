#include "bench_report.h"

#include <gtest/gtest.h>

#include <algorithm>

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

TEST(BenchReport, TheTableHasTheColumnsThatSomeRowFills) {
  const Json ours = {
      {"engine", "qevict"},
      {"method", "qevict-paper"},
      {"kv_type", "f16+int2"},
      {"flash_attn", "n/a"},
      {"depth", 64},
      {"decode_tps", {{"median", 50.0}, {"mean", 50.0}, {"sd", 1.0}}},
      {"share", {{"attention", 0.25}, {"routing", 0.01}, {"migration", 0.0}, {"matmul", 0.5}, {"rest", 0.24}}},
      {"rss_peak_bytes", 1024},
      {"vs", {{"decode_tps", {{"median", 2.5}, {"min", 2.25}, {"max", 2.75}}}}}};
  Json rival = ours;
  rival["engine"] = "llama.cpp";
  rival["flash_attn"] = "off";
  rival["share"] = nullptr;
  rival["workspace_peak_bytes"] = nullptr;
  const std::string table = bench_text({ours, rival}, BenchFormat::markdown);
  EXPECT_NE(table.find("| decode ÷ rival |"), std::string::npos);
  EXPECT_NE(table.find(" 2.50 (2.25–2.75) |"), std::string::npos);
  EXPECT_NE(table.find(" 25.0 % | 1.0 % |"), std::string::npos);
  EXPECT_NE(table.find("| off |"), std::string::npos);
  EXPECT_EQ(table.find("n/a"), std::string::npos);
  EXPECT_EQ(table.find("TTFT"), std::string::npos);
  EXPECT_EQ(table.find("workspace"), std::string::npos);
  EXPECT_EQ(std::ranges::count(table, '\n'), 4);
  // Unknown is empty in CSV too.
  EXPECT_EQ(bench_text({{{"a", nullptr}, {"b", 1}}}, BenchFormat::csv), "a,b\n,1\n");
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
