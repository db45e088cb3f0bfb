#include "summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "messages.h"

namespace qevict::app {
namespace {

std::string_view reason_text(StopReason stop) {
  switch (stop) {
    case StopReason::end_of_text:
      return "ended by the model";
    case StopReason::max_new:
      return "stopped at -n";
    case StopReason::context_full:
      return "stopped: the context is full";
    case StopReason::interrupted:
      return "interrupted";
  }
  return "";
}

double quotient(std::size_t part, double whole) { return whole > 0 ? static_cast<double>(part) / whole : 0; }

// "1.3 MiB (from 700.0 KiB, which leaves no window)", in bytes where both look alike otherwise.
std::string raised_text(std::size_t effective, std::size_t asked) {
  std::string to = bytes_text(effective), from = bytes_text(asked);
  if (to == from) {
    to = fmt::format("{} bytes", count_text(static_cast<std::int64_t>(effective)));
    from = fmt::format("{} bytes", count_text(static_cast<std::int64_t>(asked)));
  }
  return fmt::format("{} (from {}, which leaves no window)", to, from);
}

bool takes_budget(const std::vector<Setting>& settings) {
  const auto named = std::ranges::find(settings, "kv-method", &Setting::name);
  const Method* method = named == settings.end() ? nullptr : find_method(named->value);
  return method == nullptr || method->takes_budget();
}

std::string duration_text(double ms) {
  return ms < 1000 ? fmt::format("{:.0f} ms", ms) : fmt::format("{:.2f} s", ms / 1e3);
}

// "settings   a 1, b 2, ..." in lines that fit a terminal.
std::string settings_lines(const std::vector<Setting>& settings) {
  constexpr std::size_t kWidth = 100;
  std::string text;
  std::string line = "settings  ";
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const std::string item =
        fmt::format(" {} {}{}", settings[i].name, settings[i].value, i + 1 < settings.size() ? "," : "");
    if (line.size() + item.size() > kWidth && line.find_first_not_of(' ') != std::string::npos) {
      text += line + "\n";
      line = std::string(10, ' ');
    }
    line += item;
  }
  return text + line + "\n";
}

Json settings_json(const std::vector<Setting>& settings) {
  Json json = Json::object();
  for (const Setting& setting : settings) json[setting.name] = setting.value;
  return json;
}

}  // namespace

std::string to_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

void RunStats::add(const Generation& generation, double turn_text_ms, const Session& session) {
  const auto sampled = static_cast<std::int64_t>(generation.tokens.size());
  const std::int64_t steps = std::max<std::int64_t>(0, sampled - 1);
  ++turns;
  prompt_tokens += generation.prompt_tokens;
  output_tokens += sampled;
  decode_steps += steps;
  text_ms += turn_text_ms;
  prefill_ms += generation.prefill_ms;
  ttft_ms += generation.ttft_ms;
  decode_ms += generation.decode_ms;
  stop = generation.stop;
  tokens_at_prefill_end = session.n_tokens() - steps;
}

std::string_view name_of(StopReason stop) {
  switch (stop) {
    case StopReason::end_of_text:
      return "end_of_text";
    case StopReason::max_new:
      return "max_new";
    case StopReason::context_full:
      return "context_full";
    case StopReason::interrupted:
      return "interrupted";
  }
  return "";
}

std::vector<Setting> effective_settings(const Options& options, const GenerateOptions& generate,
                                        const Session& session) {
  const SamplerOptions& sampling = generate.sampling;
  std::vector<Setting> all = {{"model", options.model}};
  std::ranges::copy(session.settings(), std::back_inserter(all));
  const Setting rest[] = {{"n-predict", std::to_string(generate.max_new)},
                          {"seed", std::to_string(sampling.seed)},
                          {"temp", fmt::format("{}", sampling.temperature)},
                          {"top-k", std::to_string(sampling.top_k)},
                          {"top-p", fmt::format("{}", sampling.top_p)},
                          {"min-p", fmt::format("{}", sampling.min_p)},
                          {"repeat-penalty", fmt::format("{}", sampling.repeat_penalty)},
                          {"ignore-eos", generate.ignore_eos ? "on" : "off"},
                          {"simd", std::string(simd_target())}};
  for (const Setting& setting : rest) {
    if (std::ranges::find(all, setting.name, &Setting::name) == all.end()) all.push_back(setting);
  }
  return all;
}

std::string summary_text(const ModelInfo& model, const Session& session, const RunStats& stats,
                         const std::vector<Setting>& settings) {
  const CacheReport report = session.report();
  const std::int64_t entries = std::int64_t{session.n_tokens()} * model.n_layers * model.n_kv_heads;
  std::string text;
  const auto line = [&text]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
    text += '\n';
  };
  const auto tier = [&](const char* name, std::size_t bytes, const std::string& content) {
    if (bytes > 0) line("  {:<10}{:>10}   {}", name, bytes_text(bytes), content);
  };

  line("prompt     {} tokens{}, first token after {} ({:.1f} tokens/s)", count_text(stats.prompt_tokens),
       stats.turns > 1 ? fmt::format(" in {} turns", stats.turns) : "", duration_text(stats.mean_ttft_ms()),
       stats.prefill_tps());
  line("generated  {} tokens at {:.1f} tokens/s, {}", count_text(stats.output_tokens), stats.decode_tps(),
       reason_text(stats.stop));
  line("KV cache   {} at most, {:.1f} % of {} in f16 for {} tokens{}", bytes_text(report.bytes_peak),
       report.ratio_peak * 100, bytes_text(report.bytes_full), count_text(report.base_tokens),
       !takes_budget(settings) ? ""
       : report.budget_effective > report.budget_bytes
           ? fmt::format("; budget raised to {}", raised_text(report.budget_effective, report.budget_bytes))
           : fmt::format("; budget {}", bytes_text(report.budget_effective)));
  const CacheBytes& bytes = report.bytes;
  tier("f16", bytes.f16,
       report.compressing ? fmt::format("sinks and the newest tokens (at least {})", report.recent_tokens)
                          : "every token");
  tier("full", bytes.full, fmt::format("{} windows at full precision", count_text(report.windows_full)));
  tier("quantized", bytes.quantized, fmt::format("{} windows", count_text(report.windows_quantized)));
  tier("ledger", bytes.ledger, "codes of promoted windows, parameters of heads");
  tier("metadata", bytes.metadata, "window ids and scores");
  line("moved      {} promotions, {} demotions, {} evictions; {} of {} token entries evicted",
       count_text(report.promotions), count_text(report.demotions), count_text(report.evictions),
       count_text(report.tokens_evicted), count_text(entries));
  text += settings_lines(settings);
  return text;
}

void add_cache_fields(Json& json, const CacheReport& report, std::size_t kv_bytes_per_token, std::int64_t tokens,
                      std::int64_t prefill_tokens) {
  const double per_token = static_cast<double>(kv_bytes_per_token);
  const CacheBytes& bytes = report.bytes;
  json["kv_budget_bytes"] = report.budget_bytes;
  json["kv_budget_effective"] = report.budget_effective;
  json["kv_bytes_prefill_end"] = report.bytes_prefill_end;
  json["kv_bytes_peak"] = report.bytes_peak;
  json["kv_bytes_final"] = bytes.total();
  json["kv_bytes_full"] = report.bytes_full;
  json["kv_base_tokens"] = report.base_tokens;
  json["kv_ratio_peak"] = report.ratio_peak;
  json["kv_ratio_mean"] = report.ratio_mean;
  json["kv_ratio_prefill_end"] = quotient(report.bytes_prefill_end, per_token * static_cast<double>(prefill_tokens));
  json["kv_ratio_final"] = quotient(bytes.total(), per_token * static_cast<double>(tokens));
  json["kv_bytes_tiers"] = {{"f16", bytes.f16},
                            {"full", bytes.full},
                            {"quantized", bytes.quantized},
                            {"ledger", bytes.ledger},
                            {"metadata", bytes.metadata}};
  json["kv_windows"] = {
      {"full", report.windows_full}, {"quantized", report.windows_quantized}, {"evicted", report.windows_evicted}};
  json["kv_slots_per_head"] = {{"full", report.full_slots}, {"quantized", report.quantized_slots}};
  json["kv_recent_tokens"] = report.recent_tokens;
  json["tokens_evicted"] = report.tokens_evicted;
  json["promotions"] = report.promotions;
  json["demotions"] = report.demotions;
  json["evictions"] = report.evictions;
  json["routings"] = report.routings;
  json["routing_ms"] = report.routing_ms;
  json["migration_ms"] = report.migration_ms;
  json["attention_ms"] = report.attention_ms;
  json["kv_prefill_peak_bytes"] = report.prefill_kv_peak;
  json["workspace_peak_bytes"] = report.workspace_peak;
}

Json summary_json(const ModelInfo& model, const Session& session, const RunStats& stats,
                  const std::vector<Setting>& settings, std::size_t rss_bytes) {
  Json json;
  json["stop_reason"] = name_of(stats.stop);
  json["prompt_tokens"] = stats.prompt_tokens;
  json["output_tokens"] = stats.output_tokens;
  json["ttft_ms"] = stats.mean_ttft_ms();
  json["ttft_text_ms"] = stats.mean_ttft_text_ms();
  json["prefill_ms"] = stats.prefill_ms;
  json["prefill_tps"] = stats.prefill_tps();
  json["decode_ms"] = stats.decode_ms;
  json["decode_tps"] = stats.decode_tps();
  json["tpot_ms"] = stats.tpot_ms();
  add_cache_fields(json, session.report(), model.kv_bytes_per_token, session.n_tokens(), stats.tokens_at_prefill_end);
  json["rss_peak_bytes"] = rss_bytes;
  json["model"] = {
      {"path", model.path}, {"architecture", model.architecture}, {"name", model.name}, {"weights", model.weights}};
  json["settings"] = settings_json(settings);
  json["version"] = version();
  return json;
}

void print_raised(const std::string& label, const Json& row) {
  const auto asked = row.value<std::size_t>("kv_budget_bytes", 0);
  const auto effective = row.value<std::size_t>("kv_budget_effective", 0);
  if (effective <= asked) return;
  print_note(fmt::format("{}: budget raised to {}", label, raised_text(effective, asked)));
}

std::string bytes_text(std::size_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes < 10240) return fmt::format("{} B", bytes);
  if (value < 1024.0 * 1024) return fmt::format("{:.1f} KiB", value / 1024);
  if (value < 1024.0 * 1024 * 1024) return fmt::format("{:.1f} MiB", value / (1024.0 * 1024));
  return fmt::format("{:.2f} GiB", value / (1024.0 * 1024 * 1024));
}

std::string count_text(std::int64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t at = digits.size(); at > 3 && digits[at - 4] != '-';) digits.insert(at -= 3, ",");
  return digits;
}

}  // namespace qevict::app
