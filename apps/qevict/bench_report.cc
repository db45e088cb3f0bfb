#include "bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace qevict::app {
namespace {

bool has(const Json& row, const char* field) { return row.contains(field) && !row[field].is_null(); }

std::string text_cell(const Json& row, const char* field) {
  return has(row, field) ? row[field].get<std::string>() : "";
}

std::string spread_cell(const Json& row, const char* field) {
  if (!has(row, field)) return "";
  return fmt::format("{:.1f} ± {:.1f}", row[field]["median"].get<double>(), row[field]["sd"].get<double>());
}

std::string number_cell(const Json& row, const char* field, int digits = 2) {
  return has(row, field) ? fmt::format("{:.{}f}", row[field].get<double>(), digits) : "";
}

std::string bytes_cell(const Json& row, const char* field) {
  return has(row, field) ? bytes_text(row[field].get<std::size_t>()) : "";
}

std::string percent_cell(const Json& row, const char* field, const char* inner) {
  return has(row, field) ? fmt::format("{:.1f} %", row[field][inner].get<double>() * 100) : "";
}

// {median, min, max} or {ratio}.
std::string ratio_text(const Json& ratio) {
  if (ratio.contains("ratio")) return fmt::format("{:.2f}", ratio["ratio"].get<double>());
  if (!ratio.contains("median")) return "";
  return fmt::format("{:.2f} ({:.2f}–{:.2f})", ratio["median"].get<double>(), ratio["min"].get<double>(),
                     ratio["max"].get<double>());
}

std::string vs_cell(const Json& row, const char* field) {
  return has(row, "vs") && has(row["vs"], field) ? ratio_text(row["vs"][field]) : "";
}

// Of {median, min, max}.
std::string range_cell(const Json& row, const char* field, int digits) {
  if (!has(row, field)) return "";
  return fmt::format("{:.{}f} ({:.{}f}–{:.{}f})", row[field]["median"].get<double>(), digits,
                     row[field]["min"].get<double>(), digits, row[field]["max"].get<double>(), digits);
}

constexpr Column kColumns[] = {
    {"engine", [](const Json& row) { return text_cell(row, "engine"); }},
    {"method", [](const Json& row) { return text_cell(row, "method"); }},
    {"KV", [](const Json& row) { return text_cell(row, "kv_type"); }},
    {"FA", [](const Json& row) { return row["flash_attn"] == "n/a" ? "" : text_cell(row, "flash_attn"); }},
    {"depth", [](const Json& row) { return std::to_string(row["depth"].get<int>()); }},
    {"TTFT ms", [](const Json& row) { return spread_cell(row, "ttft_ms"); }},
    {"prefill t/s", [](const Json& row) { return spread_cell(row, "prefill_tps"); }},
    {"decode at",
     [](const Json& row) {
       return has(row, "decode_depth") && row["decode_depth"] != row["depth"]
                  ? std::to_string(row["decode_depth"].get<int>())
                  : "";
     }},
    {"decode t/s", [](const Json& row) { return spread_cell(row, "decode_tps"); }},
    {"ITL routing ms", [](const Json& row) { return number_cell(row, "itl_routing_ms"); }},
    {"ITL other ms", [](const Json& row) { return number_cell(row, "itl_other_ms"); }},
    {"attention", [](const Json& row) { return percent_cell(row, "share", "attention"); }},
    {"routing", [](const Json& row) { return percent_cell(row, "share", "routing"); }},
    {"migration", [](const Json& row) { return percent_cell(row, "share", "migration"); }},
    {"matmul", [](const Json& row) { return percent_cell(row, "share", "matmul"); }},
    {"rest", [](const Json& row) { return percent_cell(row, "share", "rest"); }},
    {"KV bytes", [](const Json& row) { return bytes_cell(row, "kv_bytes_peak"); }},
    {"of f16",
     [](const Json& row) {
       return has(row, "kv_ratio_peak") ? fmt::format("{:.1f} %", row["kv_ratio_peak"].get<double>() * 100) : "";
     }},
    {"workspace", [](const Json& row) { return bytes_cell(row, "workspace_peak_bytes"); }},
    {"RSS above weights", [](const Json& row) { return bytes_cell(row, "rss_peak_bytes"); }},
    {"decode ÷ rival", [](const Json& row) { return vs_cell(row, "decode_tps"); }},
    {"TTFT ÷ rival", [](const Json& row) { return vs_cell(row, "ttft_ms"); }},
    {"RSS ÷ rival", [](const Json& row) { return vs_cell(row, "rss_peak_bytes"); }},
    {"decode ÷ first depth", [](const Json& row) { return number_cell(row, "decode_vs_first_depth"); }},
};

constexpr Column kKernelColumns[] = {
    {"kernel", [](const Json& row) { return text_cell(row, "kernel"); }},
    {"target", [](const Json& row) { return text_cell(row, "target"); }},
    {"output error", [](const Json& row) { return fmt::format("{:.1e}", row["output_error"].get<double>()); }},
    {"ms", [](const Json& row) { return range_cell(row, "ms", 2); }},
    {"ns per token", [](const Json& row) { return range_cell(row, "ns_per_token", 2); }},
    {"GB/s", [](const Json& row) { return range_cell(row, "gb_per_second", 1); }},
    {"of bandwidth", [](const Json& row) { return range_cell(row, "share_of_bandwidth", 2); }},
    {"÷ f16 bytes at bandwidth", [](const Json& row) { return range_cell(row, "share_of_f16_time", 2); }},
    {"time ÷ ggml f16", [](const Json& row) { return number_cell(row, "vs_ggml", 3); }},
};

std::string markdown(const std::vector<Json>& rows, std::span<const Column> columns) {
  std::vector<std::string> lines(rows.size() + 2, "|");
  for (const Column& column : columns) {
    std::vector<std::string> cells;
    for (const Json& row : rows) cells.push_back(column.cell(row));
    if (std::ranges::all_of(cells, &std::string::empty)) continue;
    lines[0] += fmt::format(" {} |", column.title);
    lines[1] += "---|";
    for (std::size_t i = 0; i < cells.size(); ++i) lines[i + 2] += fmt::format(" {} |", cells[i]);
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
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
  if (value.is_null()) return "";
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

std::span<const Column> bench_columns() { return kColumns; }
std::span<const Column> kernel_columns() { return kKernelColumns; }

std::string bench_text(const std::vector<Json>& rows, BenchFormat format, std::span<const Column> columns) {
  switch (format) {
    case BenchFormat::markdown:
      return markdown(rows, columns);
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
