// What the timed repetitions of one engine at one depth gave, and how it compares with a rival's.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench_engine.h"

namespace qevict::app {

struct Samples {
  // One value a repetition.
  std::vector<double> ttft_ms, prefill_tps, fill_ms, decode_tps, tpot_ms, itl_first_ms;
  std::vector<double> share_attention, share_routing, share_migration, share_matmul, share_rest;  // of the steps' time
  // One value a step, of all repetitions.
  std::vector<double> itl_ms, itl_routing_ms, itl_other_ms;

  void add_prompt(const PromptTimes& times, int n_prompt);
  void add_decode(const DecodeTimes& times);
  // Fields of the row, those that were measured (evaluation.md 6.3).
  void add_fields(Json& row) const;
};

// One row being made: its fields and the samples behind them.
struct Measured {
  EngineLabel label;
  Samples samples;
  Json row;
};

// {median, min, max} of ours[i] / theirs[i]; null if there is none.
Json ratio_spread(std::span<const double> ours, std::span<const double> theirs);

// "vs" in every row: ratios to the rival `engine` with that KV type, for each figure the better of flash attention on
// and off (by the median). Ratios are ours over theirs.
void add_ratios(std::vector<Measured>& all, const std::string& engine, const std::string& kv_type);

// Linear interpolation between the sorted values at p / 100 * (n - 1). REQUIRES: !values.empty().
double percentile(std::vector<double> values, double p);

}  // namespace qevict::app
