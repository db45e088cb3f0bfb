#include "bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace qevict::app {
namespace {

// A column of the table for people; empty where the row has no such figure.
struct Column {
  std::string_view title;
  std::string (*cell)(const Json& row);
};

std::string spread_cell(const Json& row, const char* field) {
  if (!row.contains(field)) return "";
  return fmt::format("{:.1f} ± {:.1f}", row[field]["median"].get<double>(), row[field]["sd"].get<double>());
}

constexpr Column kColumns[] = {
    {"engine", [](const Json& row) { return row["engine"].get<std::string>(); }},
    {"method", [](const Json& row) { return row["method"].get<std::string>(); }},
    {"depth", [](const Json& row) { return std::to_string(row["depth"].get<int>()); }},
    {"TTFT ms", [](const Json& row) { return spread_cell(row, "ttft_ms"); }},
    {"prefill t/s", [](const Json& row) { return spread_cell(row, "prefill_tps"); }},
    {"decode t/s", [](const Json& row) { return spread_cell(row, "decode_tps"); }},
    {"KV bytes",
     [](const Json& row) {
       return row.contains("kv_bytes_peak") ? bytes_text(row["kv_bytes_peak"].get<std::size_t>()) : "";
     }},
    {"of f16",
     [](const Json& row) {
       return row.contains("kv_ratio_peak") ? fmt::format("{:.1f} %", row["kv_ratio_peak"].get<double>() * 100) : "";
     }},
};

std::string markdown(const std::vector<Json>& rows) {
  std::string head = "|";
  std::string rule = "|";
  for (const Column& column : kColumns) {
    head += fmt::format(" {} |", column.title);
    rule += "---|";
  }
  std::string text = head + "\n" + rule + "\n";
  for (const Json& row : rows) {
    text += "|";
    for (const Column& column : kColumns) text += fmt::format(" {} |", column.cell(row));
    text += "\n";
  }
  return text;
}

// {"ttft_ms": {"median": 1}} -> "ttft_ms.median".
void flatten(const Json& value, const std::string& name, Json& flat) {
  if (!value.is_object()) {
    flat[name] = value;
    return;
  }
  for (const auto& [key, inner] : value.items()) flatten(inner, name.empty() ? key : name + "." + key, flat);
}

std::string csv_cell(const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : to_text(value);
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string csv(const std::vector<Json>& rows) {
  std::vector<Json> flat(rows.size(), Json::object());
  std::vector<std::string> names;  // of all rows, in order of appearance
  for (std::size_t i = 0; i < rows.size(); ++i) {
    flatten(rows[i], "", flat[i]);
    for (const auto& [name, value] : flat[i].items())
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  std::string text = fmt::format("{}\n", fmt::join(names, ","));
  for (const Json& row : flat) {
    for (std::size_t i = 0; i < names.size(); ++i)
      text += (i > 0 ? "," : "") + (row.contains(names[i]) ? csv_cell(row[names[i]]) : "");
    text += "\n";
  }
  return text;
}

}  // namespace

Json spread(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  const double median = n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
  const double mean = n == 0 ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(n);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double sd = n > 1 ? std::sqrt(squares / static_cast<double>(n - 1)) : 0;
  return {{"median", median}, {"mean", mean}, {"sd", sd}};
}

std::string bench_text(const std::vector<Json>& rows, BenchFormat format) {
  switch (format) {
    case BenchFormat::markdown:
      return markdown(rows);
    case BenchFormat::csv:
      return csv(rows);
    case BenchFormat::json:
      return to_text(Json(rows), 2) + "\n";
    case BenchFormat::jsonl: {
      std::string text;
      for (const Json& row : rows) text += to_text(row) + "\n";
      return text;
    }
  }
  return "";
}

}  // namespace qevict::app
