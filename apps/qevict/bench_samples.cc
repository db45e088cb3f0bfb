#include "bench_samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench_report.h"

namespace qevict::app {
namespace {

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(const std::vector<double>& values) { return percentile(values, 50); }

// A figure that has a value for every repetition.
struct Figure {
  const char* field;
  std::vector<double> Samples::*values;
  bool higher_is_better;
};
constexpr Figure kFigures[] = {{"ttft_ms", &Samples::ttft_ms, false},
                               {"prefill_tps", &Samples::prefill_tps, true},
                               {"decode_tps", &Samples::decode_tps, true}};
// Figures that are bytes, one for the row.
constexpr const char* kByteFields[] = {"kv_bytes_peak", "rss_peak_bytes"};

const Measured* best(const std::vector<const Measured*>& rivals, const Figure& figure) {
  const Measured* found = nullptr;
  for (const Measured* rival : rivals) {
    const std::vector<double>& values = rival->samples.*figure.values;
    if (values.empty()) continue;
    if (found == nullptr) {
      found = rival;
      continue;
    }
    const double best_so_far = median(found->samples.*figure.values);
    if (figure.higher_is_better ? median(values) > best_so_far : median(values) < best_so_far) found = rival;
  }
  return found;
}

bool has_number(const Json& row, const char* field) { return row.contains(field) && row[field].is_number(); }

Json byte_ratio(const Json& row, const std::vector<const Measured*>& rivals, const char* field) {
  const Measured* least = nullptr;
  for (const Measured* rival : rivals) {
    if (!has_number(rival->row, field)) continue;
    if (least == nullptr || rival->row[field] < least->row[field]) least = rival;
  }
  if (least == nullptr || !has_number(row, field) || least->row[field].get<double>() <= 0) return nullptr;
  return {{"flash_attn", least->label.flash_attn},
          {"ratio", row[field].get<double>() / least->row[field].get<double>()}};
}

}  // namespace

void Samples::add_prompt(const PromptTimes& times, int n_prompt) {
  ttft_ms.push_back(times.ttft_ms);
  prefill_tps.push_back(n_prompt * 1e3 / times.prefill_ms);
}

void Samples::add_decode(const DecodeTimes& times) {
  const double total = std::accumulate(times.step_ms.begin(), times.step_ms.end(), 0.0);
  const auto steps = static_cast<double>(times.step_ms.size());
  decode_tps.push_back(steps * 1e3 / total);
  tpot_ms.push_back(total / steps);
  itl_first_ms.push_back(times.step_ms.front());
  itl_ms.insert(itl_ms.end(), times.step_ms.begin(), times.step_ms.end());
  for (std::size_t i = 0; i < times.routed.size(); ++i)
    (times.routed[i] ? itl_routing_ms : itl_other_ms).push_back(times.step_ms[i]);
  if (!times.parts) return;
  share_attention.push_back(times.parts->attention_ms / total);
  share_routing.push_back(times.parts->routing_ms / total);
  share_migration.push_back(times.parts->migration_ms / total);
  share_matmul.push_back(times.parts->matmul_ms / total);
  share_rest.push_back(1 - share_attention.back() - share_routing.back() - share_migration.back() -
                       share_matmul.back());
}

void Samples::add_fields(Json& row) const {
  const std::pair<const char*, const std::vector<double>*> spreads[] = {
      {"ttft_ms", &ttft_ms},       {"prefill_tps", &prefill_tps}, {"fill_ms", &fill_ms},
      {"decode_tps", &decode_tps}, {"tpot_ms", &tpot_ms},         {"itl_first_ms", &itl_first_ms}};
  for (const auto& [name, values] : spreads)
    if (!values->empty()) row[name] = spread(*values);
  if (itl_ms.empty()) return;
  row["itl_ms"] = {{"mean", mean(itl_ms)},
                   {"p50", percentile(itl_ms, 50)},
                   {"p90", percentile(itl_ms, 90)},
                   {"p99", percentile(itl_ms, 99)},
                   {"max", percentile(itl_ms, 100)}};
  row["itl_routing_ms"] = itl_routing_ms.empty() ? Json() : Json(mean(itl_routing_ms));
  row["itl_other_ms"] = itl_other_ms.empty() ? Json() : Json(mean(itl_other_ms));
  row["share"] = share_rest.empty() ? Json()
                                    : Json{{"attention", median(share_attention)},
                                           {"routing", median(share_routing)},
                                           {"migration", median(share_migration)},
                                           {"matmul", median(share_matmul)},
                                           {"rest", median(share_rest)}};
}

Json ratio_spread(std::span<const double> ours, std::span<const double> theirs) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i)
    if (theirs[i] > 0) ratios.push_back(ours[i] / theirs[i]);
  if (ratios.empty()) return nullptr;
  return {{"median", median(ratios)}, {"min", std::ranges::min(ratios)}, {"max", std::ranges::max(ratios)}};
}

void add_ratios(std::vector<Measured>& all, const std::string& engine, const std::string& kv_type) {
  std::vector<const Measured*> rivals;
  for (const Measured& measured : all)
    if (measured.label.engine == engine && measured.label.kv_type == kv_type) rivals.push_back(&measured);
  if (rivals.empty()) return;
  for (Measured& measured : all) {
    Json vs = {{"engine", engine}, {"kv_type", kv_type}};
    for (const Figure& figure : kFigures) {
      const Measured* rival = best(rivals, figure);
      if (rival == nullptr) continue;
      Json ratio = {{"flash_attn", rival->label.flash_attn}};
      ratio.update(ratio_spread(measured.samples.*figure.values, rival->samples.*figure.values));
      vs[figure.field] = ratio;
    }
    for (const char* field : kByteFields) {
      Json ratio = byte_ratio(measured.row, rivals, field);
      if (!ratio.is_null()) vs[field] = ratio;
    }
    measured.row["vs"] = vs;
  }
}

double percentile(std::vector<double> values, double p) {
  std::ranges::sort(values);
  const double at = p / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(at));
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

}  // namespace qevict::app
