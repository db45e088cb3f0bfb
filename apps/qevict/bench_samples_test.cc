#include "bench_samples.h"

#include <gtest/gtest.h>

#include "bench_kernels.h"
#include "bench_report.h"
#include "bench_rss.h"
#include "bench_run.h"

namespace qevict::app {
namespace {

Measured measured(const std::string& engine, const std::string& kv_type, const std::string& flash_attn,
                  std::vector<double> ttft_ms, std::vector<double> decode_tps) {
  Measured one = {.label = {engine, "full", kv_type, flash_attn}, .samples = {}, .row = Json::object()};
  one.samples.ttft_ms = std::move(ttft_ms);
  one.samples.decode_tps = std::move(decode_tps);
  return one;
}

TEST(BenchSamples, PercentilesInterpolate) {
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 25), 1.75);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 99), 3.97);
  EXPECT_DOUBLE_EQ(percentile({7}, 90), 7);
}

TEST(BenchSamples, RatiosArePerRepetition) {
  // 2/1, 9/3, 8/2: the ratio of the medians would be 4.
  const std::vector<double> ours = {2, 9, 8};
  const std::vector<double> theirs = {1, 3, 2};
  const Json ratio = ratio_spread(ours, theirs);
  EXPECT_DOUBLE_EQ(ratio["median"].get<double>(), 3);
  EXPECT_DOUBLE_EQ(ratio["min"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(ratio["max"].get<double>(), 4);
  EXPECT_TRUE(ratio_spread(ours, {}).is_null());
}

TEST(BenchSamples, RatiosAreToTheBetterRowOfTheRivalForEachFigure) {
  std::vector<Measured> all;
  all.push_back(measured("qevict", "f16", "n/a", {30, 30}, {100, 100}));
  all.push_back(measured("llama.cpp", "f16", "on", {60, 60}, {40, 40}));   // reads prompts faster
  all.push_back(measured("llama.cpp", "f16", "off", {90, 90}, {50, 50}));  // decodes faster
  all.push_back(measured("llama.cpp", "q8_0", "on", {10, 10}, {500, 500}));
  all[0].row["rss_peak_bytes"] = 300;
  all[1].row["rss_peak_bytes"] = 1000;
  all[2].row["rss_peak_bytes"] = 900;
  add_ratios(all, "llama.cpp", "f16");
  const Json& vs = all[0].row["vs"];
  EXPECT_EQ(vs["ttft_ms"]["flash_attn"], "on");
  EXPECT_DOUBLE_EQ(vs["ttft_ms"]["median"].get<double>(), 0.5);
  EXPECT_EQ(vs["decode_tps"]["flash_attn"], "off");
  EXPECT_DOUBLE_EQ(vs["decode_tps"]["median"].get<double>(), 2);
  EXPECT_EQ(vs["rss_peak_bytes"]["flash_attn"], "off");
  EXPECT_NEAR(vs["rss_peak_bytes"]["ratio"].get<double>(), 1.0 / 3, 1e-12);
  EXPECT_FALSE(vs.contains("prefill_tps"));
  EXPECT_DOUBLE_EQ(all[3].row["vs"]["decode_tps"]["median"].get<double>(), 10);
  EXPECT_DOUBLE_EQ(all[1].row["vs"]["ttft_ms"]["median"].get<double>(), 1);
}

TEST(BenchSamples, AnUnknownFigureOfTheRivalHasNoRatio) {
  std::vector<Measured> all;
  all.push_back(measured("qevict", "f16", "n/a", {}, {100}));
  all.push_back(measured("llama.cpp", "f16", "on", {}, {40}));
  all[0].row["kv_bytes_peak"] = 10;
  all[1].row["kv_bytes_peak"] = nullptr;
  add_ratios(all, "llama.cpp", "f16");
  EXPECT_FALSE(all[0].row["vs"].contains("kv_bytes_peak"));
  EXPECT_FALSE(all[0].row["vs"].contains("ttft_ms"));
}

TEST(BenchSamples, StepsAreSplitByRouting) {
  Samples samples;
  samples.add_decode({.step_ms = {1, 1, 6}, .routed = {false, false, true}, .parts = StepParts{2, 1, 1, 4}});
  samples.add_decode({.step_ms = {3, 3, 2}, .routed = {false, false, true}, .parts = StepParts{4, 0, 0, 2}});
  Json row;
  samples.add_fields(row);
  EXPECT_DOUBLE_EQ(row["itl_routing_ms"].get<double>(), 4);
  EXPECT_DOUBLE_EQ(row["itl_other_ms"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(row["itl_first_ms"]["median"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(row["decode_tps"]["median"].get<double>(), 3 * 1e3 / 8);
  EXPECT_DOUBLE_EQ(row["share"]["attention"].get<double>(), 0.375);
  EXPECT_DOUBLE_EQ(row["share"]["routing"].get<double>(), 0.0625);
  EXPECT_DOUBLE_EQ(row["share"]["matmul"].get<double>(), 0.375);
  EXPECT_DOUBLE_EQ(row["share"]["rest"].get<double>(), 0.125);
  EXPECT_DOUBLE_EQ(row["itl_ms"]["max"].get<double>(), 6);
  EXPECT_FALSE(row.contains("ttft_ms"));
}

TEST(BenchSamples, WhatARivalDoesNotTellIsNull) {
  Samples samples;
  samples.add_decode({.step_ms = {2, 2}, .routed = {}, .parts = {}});
  Json row;
  samples.add_fields(row);
  EXPECT_TRUE(row["share"].is_null());
  EXPECT_TRUE(row["itl_routing_ms"].is_null());
}

TEST(BenchPlan, ContextHoldsTheLongestRun) {
  EXPECT_EQ((BenchPlan{.n_prompt = 512, .n_gen = 32}.context_tokens(100)), 612);
  EXPECT_EQ((BenchPlan{.n_prompt = 0, .n_gen = 32}.context_tokens(0)), 33);
  EXPECT_EQ((BenchPlan{.n_prompt = 512, .n_gen = 32, .after_prompt = true}.context_tokens(100)), 644);
  EXPECT_EQ((BenchPlan{.n_prompt = 0, .n_gen = 32, .repetitions = 2, .keep_fill = true}.context_tokens(100)), 196);
  EXPECT_EQ((BenchPlan{.n_prompt = 8, .n_gen = 0, .depths = {4, 16, 0}}.longest_context()), 24);
}

TEST(RssTask, ReadsWhatItWrites) {
  const Result<RssTask> task = RssTask::parse(RssTask{2, 7680}.to_string());
  ASSERT_TRUE(task.ok());
  EXPECT_EQ(task->engine, 2u);
  EXPECT_EQ(task->depth, 7680);
  for (const char* text : {"", "1", "1,", ",1", "1,-2", "1,2x", "a,2"}) EXPECT_FALSE(RssTask::parse(text).ok()) << text;
}

TEST(KernelRatios, CompareWithTheSameKindOfWork) {
  std::vector<Json> rows = {{{"engine", "qevict"}, {"kernel", "decode int2"}, {"ms", {{"median", 1.0}}}},
                            {{"engine", "qevict"}, {"kernel", "prefill"}, {"ms", {{"median", 30.0}}}},
                            {{"engine", "ggml"}, {"kernel", "decode x"}, {"ms", {{"median", 4.0}}}},
                            {{"engine", "ggml"}, {"kernel", "prefill x"}, {"ms", {{"median", 60.0}}}}};
  add_kernel_ratios(rows);
  EXPECT_DOUBLE_EQ(rows[0]["vs_ggml"].get<double>(), 0.25);
  EXPECT_DOUBLE_EQ(rows[1]["vs_ggml"].get<double>(), 0.5);
}

}  // namespace
}  // namespace qevict::app
