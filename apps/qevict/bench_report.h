// Rows of `qevict bench` and the forms they are printed in.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "summary.h"

namespace qevict::app {

enum class BenchFormat { markdown, csv, json, jsonl };
inline constexpr std::string_view kBenchFormats[] = {"md", "csv", "json", "jsonl"};  // in that order

// {median, mean, sd} of the timed repetitions; sd is the sample's (n - 1), 0 for one repetition.
Json spread(std::vector<double> values);

// A column of the table for people; empty where the row has no such figure. A column without any is left out.
struct Column {
  std::string_view title;
  std::string (*cell)(const Json& row);
};
std::span<const Column> bench_columns();
std::span<const Column> kernel_columns();  // of `bench --kernels`

// One row: engine, method, kv_type, flash_attn, depth and the names of evaluation.md 6.3.
std::string bench_text(const std::vector<Json>& rows, BenchFormat format,
                       std::span<const Column> columns = bench_columns());

}  // namespace qevict::app
