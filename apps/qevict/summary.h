// What a run did: a short text for people, the same as JSON for programs (field names of docs/design.md, "Reports").
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "options.h"
#include "qevict/qevict.h"

namespace qevict::app {

using Json = nlohmann::ordered_json;

// Always valid: bytes that are not UTF-8 become U+FFFD.
std::string to_text(const Json& json, int indent = -1);

// One answer after another; `generate` has one, `chat` one a turn.
struct RunStats {
  int turns = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t decode_steps = 0;
  double text_ms = 0;  // template and tokenization
  double prefill_ms = 0;
  double ttft_ms = 0;
  double decode_ms = 0;
  StopReason stop = StopReason::end_of_text;  // of the last answer
  std::int64_t tokens_at_prefill_end = 0;     // in the session when the last prompt had been read

  // session: as the answer left it.
  void add(const Generation& generation, double turn_text_ms, const Session& session);
  double prefill_tps() const { return prefill_ms > 0 ? static_cast<double>(prompt_tokens) * 1e3 / prefill_ms : 0; }
  double decode_tps() const { return decode_ms > 0 ? static_cast<double>(decode_steps) * 1e3 / decode_ms : 0; }
  double tpot_ms() const { return decode_steps > 0 ? decode_ms / static_cast<double>(decode_steps) : 0; }
  // Per answer.
  double mean_ttft_ms() const { return turns > 0 ? ttft_ms / turns : 0; }
  double mean_ttft_text_ms() const { return turns > 0 ? (ttft_ms + text_ms) / turns : 0; }
};

std::string_view name_of(StopReason stop);  // "end_of_text", ...

// Everything in force: the session's own settings, then sampling and machine.
std::vector<Setting> effective_settings(const Options& options, const GenerateOptions& generate,
                                        const Session& session);

std::string summary_text(const ModelInfo& model, const Session& session, const RunStats& stats,
                         const std::vector<Setting>& settings);
// rss_bytes: of rss_peak_bytes (memory.h).
Json summary_json(const ModelInfo& model, const Session& session, const RunStats& stats,
                  const std::vector<Setting>& settings, std::size_t rss_bytes);
// The cache's part of it, for `bench` too. tokens: fed so far.
void add_cache_fields(Json& json, const CacheReport& report, std::size_t kv_bytes_per_token, std::int64_t tokens,
                      std::int64_t prefill_tokens);

// A note if kv_budget_effective of the row is above its kv_budget_bytes, so that nobody takes it for the budget asked
// for.
void print_raised(const std::string& label, const Json& row);

std::string bytes_text(std::size_t bytes);   // "27.5 MiB"
std::string count_text(std::int64_t count);  // "12,345"

}  // namespace qevict::app
