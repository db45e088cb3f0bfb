#include "options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>

#include "environment.h"
#include "messages.h"

namespace qevict::app {
namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int kMaxThreads = 512;  // ggml's limit

// The last long name in "-c,--ctx-size".
std::string long_name(const std::string& flags) { return flags.substr(flags.rfind("--")); }

[[noreturn]] void refuse(const std::string& flags, const std::string& why) {
  throw CLI::ValidationError(long_name(flags), why);
}

int parse_int(const std::string& flags, const std::string& text, int low, int high) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || end != text.data() + text.size()) {
    refuse(flags, fmt::format("'{}' is not a whole number", text));
  }
  if (value < low || value > high) {
    refuse(flags, high == kMaxInt && value < low ? fmt::format("must be at least {}, got {}", low, text)
                                                 : fmt::format("must be from {} to {}, got {}", low, high, text));
  }
  return static_cast<int>(value);
}

// Takes the value of a library parser, or throws its message.
template <class T>
T taken(const std::string& flags, Result<T> result) {
  if (!result) refuse(flags, result.error().message);
  return *std::move(result);
}

BudgetBase parse_base(const std::string& text) {
  if (text == "request") return BudgetBase::request;
  if (text == "current") return BudgetBase::current;
  if (text == "context") return BudgetBase::context;
  if (text == "prompt") return BudgetBase::prompt;
  refuse("--budget-base", fmt::format("'{}' is none of request, current, context, prompt", text));
}

template <class Names>
std::string joined(const Names& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

CLI::Option* add_text(CLI::App& command, const std::string& flags, const std::string& type, const std::string& help,
                      std::function<void(const std::string&)> store) {
  return command.add_option_function<std::string>(flags, std::move(store), help)
      ->type_name(type)
      ->envname(variable_name(long_name(flags)));
}

CLI::Option* add_int(CLI::App& command, const std::string& flags, int low, int high, const std::string& help,
                     std::function<void(int)> store) {
  return add_text(command, flags, "N", help, [flags, low, high, store = std::move(store)](const std::string& text) {
    store(parse_int(flags, text, low, high));
  });
}

CLI::Option* add_number(CLI::App& command, const std::string& flags, const std::string& range,
                        std::function<bool(double)> in_range, const std::string& help,
                        std::function<void(double)> store) {
  return add_text(command, flags, "X", help,
                  [flags, range, in_range = std::move(in_range), store = std::move(store)](const std::string& text) {
                    double value = 0;
                    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
                    if (problem != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
                      refuse(flags, fmt::format("'{}' is not a number", text));
                    }
                    if (!in_range(value)) refuse(flags, fmt::format("must be {}, got {}", range, text));
                    store(value);
                  });
}

// The name of one of a table's rows.
CLI::Option* add_name(CLI::App& command, const std::string& flag, const std::string& help,
                      std::span<const std::string_view> known, std::function<void(const std::string&)> store) {
  return add_text(command, flag, "NAME", fmt::format("{}: {}", help, joined(known)),
                  [flag, known, store = std::move(store)](const std::string& text) {
                    if (std::ranges::find(known, text) == known.end())
                      refuse(flag, fmt::format("'{}' is none of {}", text, joined(known)));
                    store(text);
                  });
}

CLI::Option* add_switch(CLI::App& command, const std::string& flags, const std::string& help, bool& target) {
  return command.add_flag(flags, target, help)->envname(variable_name(long_name(flags)));
}

void add_model_options(CLI::App& command, Options& options) {
  add_text(command, "-m,--model", "FILE", "GGUF file (default: SmolLM2-135M-Instruct, fetched at set-up)",
           [&](const std::string& text) { options.model = text; });
  add_int(command, "-c,--ctx-size", 0, kMaxInt,
          "most tokens, prompt and answer together (0: the model's trained length)",
          [&](int value) { options.ctx_size = value; });
  add_int(command, "-t,--threads", 1, kMaxThreads, "threads (default: one for each core)",
          [&](int value) { options.threads = value; });
  add_text(command, "--simd", "NAME", "instruction set of the attention kernels (`qevict info` lists them)",
           [&](const std::string& text) { options.simd = text; });
}

void add_prompt_options(CLI::App& command, Options& options) {
  add_text(command, "-p,--prompt", "TEXT", "the prompt, taken as it stands (no escapes)",
           [&](const std::string& text) { options.prompt = text; });
  add_text(command, "-f,--file", "FILE", "read the prompt from a file; - is standard input",
           [&](const std::string& text) { options.file = text; });
}

void add_chat_options(CLI::App& command, Options& options) {
  add_text(command, "--system", "TEXT", "the system message", [&](const std::string& text) { options.system = text; });
  add_text(command, "--chat-template", "NAME|JINJA", "in place of the model file's own template",
           [&](const std::string& text) { options.chat_template = text; });
}

void add_sampling_options(CLI::App& command, Options& options) {
  SamplerOptions& sampling = options.sampling;
  add_int(command, "-n,--n-predict", -1, kMaxInt, "most new tokens; -1: until the end of the text or of the context",
          [&](int value) { options.n_predict = value; });
  add_text(command, "-s,--seed", "N", "seed of the sampler (default: random, shown at the end)",
           [&](const std::string& text) {
             std::uint32_t seed = 0;
             const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), seed);
             if (text == "-1") return;  // llama.cpp's way to say "random"
             if (problem != std::errc{} || end != text.data() + text.size()) {
               refuse("--seed", fmt::format("'{}' is not a whole number from 0 to 4294967295", text));
             }
             options.seed = seed;
           });
  add_number(
      command, "--temp", "0 or more", [](double x) { return x >= 0; },
      fmt::format("temperature; 0 always takes the likeliest token (default {})", sampling.temperature),
      [&](double value) { sampling.temperature = static_cast<float>(value); });
  add_int(command, "--top-k", 0, kMaxInt,
          fmt::format("sample from the K likeliest; 0: off (default {})", sampling.top_k),
          [&](int value) { sampling.top_k = value; });
  add_number(
      command, "--top-p", "above 0 and at most 1", [](double x) { return x > 0 && x <= 1; },
      fmt::format("nucleus sampling; 1: off (default {})", sampling.top_p),
      [&](double value) { sampling.top_p = static_cast<float>(value); });
  add_number(
      command, "--min-p", "from 0 to 1", [](double x) { return x >= 0 && x <= 1; },
      fmt::format("least probability relative to the likeliest; 0: off (default {})", sampling.min_p),
      [&](double value) { sampling.min_p = static_cast<float>(value); });
  add_number(
      command, "--repeat-penalty", "above 0", [](double x) { return x > 0; },
      fmt::format("penalty on the last {} tokens; 1: off (default {})", sampling.repeat_last_n,
                  sampling.repeat_penalty),
      [&](double value) { sampling.repeat_penalty = static_cast<float>(value); });
  add_switch(command, "--ignore-eos", "never end at the model's end-of-text token", options.ignore_eos);
}

void add_cache_options(CLI::App& command, Options& options) {
  CacheConfig& cache = options.cache;
  add_text(command, "--kv-method", "NAME", fmt::format("`qevict methods` lists them (default {})", cache.method),
           [&](const std::string& text) { cache.method = text; });
  add_text(command, "--kv-budget", "20%|64MiB",
           fmt::format("bytes of the whole cache, or percent of an f16 cache (default {:.0f}% of the context)",
                       kDefaultBudgetRatio * 100),
           [&](const std::string& text) {
             cache.budget = taken("--kv-budget", Budget::parse(text));
             options.budget_text = text;
           });
  add_text(command, "--budget-base", "BASE",
           "what a percentage refers to: request (prompt + -n), current (the tokens so far), context (-c), or prompt "
           "(new tokens stay whole on top of it)",
           [&](const std::string& text) { cache.budget_base = parse_base(text); });
  add_int(command, "--kv-window", 1, 256, "tokens that are kept, quantized or evicted together",
          [&](int value) { cache.window_tokens = value; });
  add_int(command, "--kv-sinks", 0, 128, "first tokens, always at full precision",
          [&](int value) { cache.sink_tokens = value; });
  add_text(command, "--kv-recent", "auto|N|P%", "newest tokens, always at full precision",
           [&](const std::string& text) { cache.recent = taken("--kv-recent", Recent::parse(text)); });
  add_text(command, "--kv-quant-share", "P%", "of the routed bytes, to the quantized tier",
           [&](const std::string& text) {
             const std::string digits = text.ends_with('%') ? text.substr(0, text.size() - 1) : text;
             double percent = 0;
             const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), percent);
             if (problem != std::errc{} || end != digits.data() + digits.size() || !text.ends_with('%') ||
                 !(percent >= 0 && percent <= 100)) {
               refuse("--kv-quant-share", fmt::format("must be from 0% to 100%, got '{}'", text));
             }
             cache.quantized_per_mille = static_cast<int>(std::lround(percent * 10));
           });
  add_int(command, "--kv-interval", 1, kMaxInt, "decode steps between two routings",
          [&](int value) { cache.interval_steps = value; });
  add_name(command, "--kv-ranking", "what ranks windows", ranking_names(),
           [&](const std::string& text) { cache.ranking = text; });
  add_number(
      command, "--kv-decay", "above 0 and at most 1", [](double x) { return x > 0 && x <= 1; },
      "what an attention score keeps per token; 1 never forgets", [&](double value) { cache.decay = value; });
  add_name(command, "--kv-codec", "codec of the quantized tier", codec_names(),
           [&](const std::string& text) { cache.codec = text; });
  add_name(command, "--kv-allocator", "who shares bytes with whom", allocator_names(),
           [&](const std::string& text) { cache.allocator = text; });
  add_name(command, "--kv-weight", "factor of scores that values decide", weight_names(),
           [&](const std::string& text) { cache.weight = text; });
  add_number(
      command, "--kv-floor", "from 0 to 1", [](double x) { return x >= 0 && x <= 1; },
      "share of an equal part that every head keeps", [&](double value) { cache.floor = value; });
  add_number(
      command, "--kv-quant-loss", "from 0 to 1", [](double x) { return x >= 0 && x <= 1; },
      "share of a window's worth that codes lose, where the split over the tiers follows gain",
      [&](double value) { cache.quantization_loss = value; });
  add_number(
      command, "--kv-coverage", "from 0 to 1000", [](double x) { return x >= 0 && x <= 1000; },
      "worth of holding any window at all, in mean scores, where the split over the tiers follows gain",
      [&](double value) { cache.coverage = value; });
  command
      .add_flag_callback(
          "--no-promotion", [&] { cache.promotion = false; }, "quantized windows never return to full precision")
      ->envname(variable_name("--no-promotion"));
}

void add_json_option(CLI::App& command, Options& options) {
  add_switch(command, "--json", "one JSON object on standard output in place of text", options.json);
}

void add_print_settings_option(CLI::App& command, Options& options) {
  add_switch(command, "--print-settings", "print the settings in force, seed included, before starting",
             options.print_settings);
}

bool typed(const CLI::App& command, const std::string& long_flag) {
  return std::ranges::any_of(command.parse_order(), [&](const CLI::Option* option) {
    return !option->get_lnames().empty() && "--" + option->get_lnames().front() == long_flag;
  });
}

Result<void> settle(const CLI::App& command, Options& options) {
  const Method* method = find_method(options.cache.method);
  if (method != nullptr && !method->takes_budget() && typed(command, "--kv-method") && !typed(command, "--kv-budget")) {
    options.cache.budget = {};
  }
  if (!options.prompt || !options.file) return {};
  const bool prompt_typed = typed(command, "--prompt");
  if (prompt_typed == typed(command, "--file")) return invalid("--prompt and --file contradict each other: give one");
  (prompt_typed ? options.file : options.prompt).reset();
  return {};
}

Result<const Method*> require_method(const std::string& name) {
  if (const Method* method = find_method(name)) return method;
  const std::size_t end = name.find_first_of(":,");
  if (end != std::string::npos && find_method(name.substr(0, end)) != nullptr) {
    return invalid("--kv-method {}: {}", name,
                   name[end] == ':' ? "options of one method are for eval; give --kv-... beside it here"
                                    : "one method here; bench and eval compare several");
  }
  std::vector<std::string> names;
  for (const Method& method : methods()) names.emplace_back(method.name);
  constexpr std::size_t kTooShort = 3;  // to be near anything
  const std::string near = name.size() < kTooShort ? "" : nearest(name, names);
  return invalid("unknown --kv-method '{}'{}; known: {}", name,
                 near.empty() ? std::string() : fmt::format(", did you mean {}?", near), joined(names));
}

Result<void> check_cache_options(const Options& options, const Method& method) {
  const CacheConfig& cache = options.cache;
  if (!method.compresses) {
    if (cache.budget.bytes || (cache.budget.ratio && *cache.budget.ratio < 1)) {
      return invalid("--kv-budget {} contradicts --kv-method {}, which keeps every token at full precision",
                     options.budget_text, method.name);
    }
  }
  if (method.quantizes_everything && (cache.budget.bytes || cache.budget.ratio || cache.budget_base)) {
    return invalid("{} contradicts --kv-method {}, which keeps every token in codes and takes no budget",
                   cache.budget_base ? "--budget-base" : fmt::format("--kv-budget {}", options.budget_text),
                   method.name);
  }
  // What a method does not decide cannot be set: `full` decides nothing, and rows that quantize everything in one codec
  // rank nothing.
  const bool ranks_nothing = method.quantizes_everything && method.ranking == "recency";
  const struct {
    bool given;
    const char* flag;
    bool of_codes;  // means something where everything is quantized
  } settings[] = {{cache.window_tokens.has_value(), "--kv-window", true},
                  {cache.sink_tokens.has_value(), "--kv-sinks", true},
                  {cache.recent.has_value(), "--kv-recent", true},
                  {cache.quantized_per_mille.has_value(), "--kv-quant-share", false},
                  {cache.interval_steps.has_value(), "--kv-interval", true},
                  {cache.ranking.has_value(), "--kv-ranking", false},
                  {cache.decay.has_value(), "--kv-decay", false},
                  {cache.codec.has_value(), "--kv-codec", true},
                  {cache.allocator.has_value(), "--kv-allocator", false},
                  {cache.weight.has_value(), "--kv-weight", false},
                  {cache.floor.has_value(), "--kv-floor", false},
                  {cache.quantization_loss.has_value(), "--kv-quant-loss", false},
                  {cache.coverage.has_value(), "--kv-coverage", false},
                  {cache.promotion.has_value(), "--no-promotion", false}};
  for (const auto& [given, flag, of_codes] : settings) {
    if (!given || (method.compresses && !(ranks_nothing && !of_codes))) continue;
    return invalid("{} contradicts --kv-method {}, which {}", flag, method.name,
                   method.compresses ? "quantizes every token" : "keeps every token at full precision");
  }
  if (method.codec.empty() && cache.codec.has_value()) {
    return invalid("--kv-codec contradicts --kv-method {}, which has no quantized tier", method.name);
  }
  if (method.codec.empty() && cache.promotion.has_value()) {
    return invalid("--no-promotion contradicts --kv-method {}, which has no quantized tier", method.name);
  }
  if (method.codec.empty() && cache.quantized_per_mille.value_or(0) > 0) {
    return invalid("--kv-quant-share contradicts --kv-method {}, which has no quantized tier", method.name);
  }
  if (cache.budget.bytes && cache.budget_base) {
    return invalid("--budget-base is for percentages and contradicts --kv-budget {}", options.budget_text);
  }
  if ((cache.budget_base == BudgetBase::request || cache.budget_base == BudgetBase::prompt) &&
      options.n_predict == -1) {
    return invalid("--budget-base {} needs a number of new tokens, but -n is -1",
                   cache.budget_base == BudgetBase::prompt ? "prompt" : "request");
  }
  return {};
}

Result<void> complete(Options& options) {
  options.sampling.seed = options.seed ? *options.seed : std::random_device{}();
  if (options.model.empty()) {
    options.model = QEVICT_DEFAULT_MODEL;
    std::error_code ignored;
    if (!std::filesystem::exists(options.model, ignored)) {
      return io_error(
          "no model: give one with -m FILE or QEVICT_MODEL (the default one, {}, is not there; "
          "setup/setup.sh fetches it)",
          options.model);
    }
  }
  if (!options.simd.empty() && !force_simd_target(options.simd)) {
    return invalid("--simd: '{}' is none of {}", options.simd, joined(simd_targets()));
  }
  return {};
}

SessionOptions session_options(const Options& options) {
  return {.cache = options.cache, .n_threads = options.threads, .n_ctx = options.ctx_size};
}

GenerateOptions generate_options(const Options& options, int default_predict) {
  return {.max_new = options.n_predict.value_or(default_predict),
          .sampling = options.sampling,
          .ignore_eos = options.ignore_eos};
}

}  // namespace qevict::app
