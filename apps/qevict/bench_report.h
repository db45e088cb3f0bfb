// Rows of `qevict bench` and the forms they are printed in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "summary.h"

namespace qevict::app {

enum class BenchFormat { markdown, csv, json, jsonl };
inline constexpr std::string_view kBenchFormats[] = {"md", "csv", "json", "jsonl"};  // in that order

// {median, mean, sd} of the timed repetitions; sd is the sample's (n - 1), 0 for one repetition.
Json spread(std::vector<double> values);

// One row: engine, method, kv_type, flash_attn, depth and the names of evaluation.md 6.3.
std::string bench_text(const std::vector<Json>& rows, BenchFormat format);

}  // namespace qevict::app
