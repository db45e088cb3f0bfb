// What the user asked for: one struct for all commands, filled from flags and QEVICT_ environment variables.
//
// A flag "--kv-budget" is also the variable QEVICT_KV_BUDGET; the flag wins. An empty variable counts as unset.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "qevict/qevict.h"

namespace qevict::app {

struct Options {
  // Model and machine.
  std::string model;  // empty: the default model
  std::string chat_template;
  int ctx_size = 0;  // tokens; 0: the model's trained length
  int threads = 0;   // 0: the machine's cores
  std::string simd;  // empty: the best this machine has

  // Prompt.
  std::optional<std::string> prompt;
  std::optional<std::string> file;  // "-": standard input
  std::optional<std::string> system;

  // Sampling.
  std::optional<int> n_predict;  // -1: until the end of text or of the context
  SamplerOptions sampling;
  std::optional<std::uint32_t> seed;  // unset: a random one, printed
  bool ignore_eos = false;

  // Cache.
  CacheConfig cache;
  std::string budget_text;  // as typed, "" if not

  // Output.
  bool json = false;
  bool print_settings = false;
};

inline constexpr int kDefaultPredict = 256;  // of `generate`

// Groups of options a command takes. Values are checked as they are read; a bad one throws CLI::ValidationError.
void add_model_options(CLI::App& command, Options& options);
void add_prompt_options(CLI::App& command, Options& options);
void add_chat_options(CLI::App& command, Options& options);
void add_sampling_options(CLI::App& command, Options& options);
void add_cache_options(CLI::App& command, Options& options);
void add_json_option(CLI::App& command, Options& options);
void add_print_settings_option(CLI::App& command, Options& options);

// Pieces for a command's own options. Each also sets the option's environment variable.
CLI::Option* add_int(CLI::App& command, const std::string& flags, int low, int high, const std::string& help,
                     std::function<void(int)> store);
CLI::Option* add_number(CLI::App& command, const std::string& flags, const std::string& range,
                        std::function<bool(double)> in_range, const std::string& help,
                        std::function<void(double)> store);
CLI::Option* add_name(CLI::App& command, const std::string& flag, const std::string& help,
                      std::span<const std::string_view> known, std::function<void(const std::string&)> store);
CLI::Option* add_text(CLI::App& command, const std::string& flags, const std::string& type, const std::string& help,
                      std::function<void(const std::string&)> store);
CLI::Option* add_switch(CLI::App& command, const std::string& flags, const std::string& help, bool& target);

// After parsing: true if the option stood on the command line, false if it came from the environment or not at all.
bool typed(const CLI::App& command, const std::string& long_flag);
// Where a typed flag meets the variable of another that it contradicts, the flag wins: --prompt and --file exclude each
// other, and a full cache has no budget.
Result<void> settle(const CLI::App& command, Options& options);

// What one option alone cannot tell: contradictions between the cache options, and with the method's row.
Result<void> check_cache_options(const Options& options, const Method& method);
Result<const Method*> require_method(const std::string& name);

// Fills in what may be left out (seed, model path).
Result<void> complete(Options& options);

SessionOptions session_options(const Options& options);
GenerateOptions generate_options(const Options& options, int default_predict);

}  // namespace qevict::app
