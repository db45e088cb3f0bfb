// qevict bench: speed and memory, method beside method, in one process and interleaved (A B A B ...).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <random>
#include <sstream>

#include "bench_engine.h"
#include "bench_report.h"
#include "commands.h"
#include "messages.h"
#include "progress.h"
#include "terminal.h"

namespace qevict::app {
namespace {

constexpr int kMostTokens = 1 << 26;

struct BenchOptions {
  int n_prompt = 512;
  int n_gen = 32;
  std::vector<int> depths = {0};
  int repetitions = 5;
  BenchFormat format = BenchFormat::markdown;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::vector<int> parse_depths(const std::string& list) {
  std::vector<int> depths;
  for (const std::string& part : split(list)) {
    int depth = -1;
    const auto [end, problem] = std::from_chars(part.data(), part.data() + part.size(), depth);
    if (problem != std::errc{} || end != part.data() + part.size() || depth < 0 || depth > kMostTokens) {
      throw CLI::ValidationError("--n-depth", fmt::format("'{}' is not a number of tokens", part));
    }
    depths.push_back(depth);
  }
  if (depths.empty()) throw CLI::ValidationError("--n-depth", "needs one depth at least");
  return depths;
}

BenchFormat parse_format(const std::string& text) {
  const auto at = std::ranges::find(kBenchFormats, text);
  if (at == std::end(kBenchFormats)) {
    throw CLI::ValidationError("--output", fmt::format("'{}' is none of {}", text, fmt::join(kBenchFormats, ", ")));
  }
  return static_cast<BenchFormat>(at - std::begin(kBenchFormats));
}

std::vector<Token> random_tokens(int count, int n_vocab) {
  std::mt19937 random(1);
  std::uniform_int_distribution<Token> any(0, n_vocab - 1);
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  for (Token& token : tokens) token = any(random);
  return tokens;
}

// The timed repetitions of one engine at one depth.
struct Samples {
  std::vector<double> ttft_ms, prefill_tps, fill_ms, decode_tps, tpot_ms;
};

class Bench {
 public:
  Bench(const BenchOptions& bench, const Model& model, std::vector<std::unique_ptr<BenchEngine>> engines)
      : bench_(bench),
        engines_(std::move(engines)),
        tokens_(random_tokens(std::ranges::max(bench.depths) + 1 + std::max(bench.n_prompt, bench.n_gen),
                              model.info().n_vocab)),
        units_(static_cast<double>(bench.depths.size() * engines_.size()) * (bench.repetitions + 1)) {}

  // Rows of one depth, in the engines' order.
  Result<std::vector<Json>> at_depth(int depth) {
    std::vector<Samples> samples(engines_.size());
    std::vector<Json> figures(engines_.size());
    for (int repetition = -1; repetition < bench_.repetitions; ++repetition) {  // the first is thrown away
      for (std::size_t i = 0; i < engines_.size(); ++i) {
        const Result<void> measured = measure(*engines_[i], depth, repetition >= 0 ? &samples[i] : nullptr);
        if (!measured) return measured.error();
        figures[i] = Json::object();
        engines_[i]->add_fields(figures[i]);
        ++units_done_;
      }
    }
    std::vector<Json> rows;
    for (std::size_t i = 0; i < engines_.size(); ++i)
      rows.push_back(row_of(*engines_[i], depth, samples[i], figures[i]));
    return rows;
  }

 private:
  Result<void> measure(BenchEngine& engine, int depth, Samples* samples) {
    const std::span<const Token> tokens = tokens_;
    const double parts = (bench_.n_prompt > 0 ? 1 : 0) + (bench_.n_gen > 0 ? 1 : 0);
    double part = 0;
    const BenchProgress progress = [&](double share) {
      bar_.update(static_cast<std::int64_t>((units_done_ + (part + share) / parts) * 1000),
                  static_cast<std::int64_t>(units_ * 1000));
      return !interrupted();
    };
    if (bench_.n_prompt > 0) {
      const Result<PromptTimes> times = engine.read_prompt(
          tokens.first(static_cast<std::size_t>(depth)),
          tokens.subspan(static_cast<std::size_t>(depth), static_cast<std::size_t>(bench_.n_prompt)), progress);
      if (!times) return times.error();
      part = 1;
      if (samples != nullptr) {
        samples->ttft_ms.push_back(times->ttft_ms);
        samples->prefill_tps.push_back(bench_.n_prompt * 1e3 / times->prefill_ms);
      }
    }
    if (bench_.n_gen > 0) {
      const std::size_t fill = std::max<std::size_t>(1, static_cast<std::size_t>(depth));
      const Result<DecodeTimes> times =
          engine.decode(tokens.first(fill), tokens.subspan(fill, static_cast<std::size_t>(bench_.n_gen)), progress);
      if (!times) return times.error();
      if (samples != nullptr) {
        samples->fill_ms.push_back(times->fill_ms);
        samples->decode_tps.push_back(bench_.n_gen * 1e3 / times->decode_ms);
        samples->tpot_ms.push_back(times->decode_ms / bench_.n_gen);
      }
    }
    return {};
  }

  Json row_of(const BenchEngine& engine, int depth, const Samples& samples, const Json& figures) const {
    const EngineLabel& label = engine.label();
    Json row = {{"engine", label.engine},   {"method", label.method},
                {"kv_type", label.kv_type}, {"flash_attn", label.flash_attn},
                {"depth", depth},           {"n_prompt", bench_.n_prompt},
                {"n_gen", bench_.n_gen},    {"repetitions", bench_.repetitions}};
    if (bench_.n_prompt > 0) {
      row["ttft_ms"] = spread(samples.ttft_ms);
      row["prefill_tps"] = spread(samples.prefill_tps);
    }
    if (bench_.n_gen > 0) {
      if (depth > 0) row["fill_ms"] = spread(samples.fill_ms);
      row["decode_tps"] = spread(samples.decode_tps);
      row["tpot_ms"] = spread(samples.tpot_ms);
    }
    row.update(figures);
    return row;
  }

  const BenchOptions& bench_;
  std::vector<std::unique_ptr<BenchEngine>> engines_;
  std::vector<Token> tokens_;
  double units_;
  double units_done_ = 0;
  ProgressBar bar_{"measuring"};
};

// One budget for all methods of a run: those that keep everything take none.
Options for_method(Options options, const Method& method) {
  options.cache.method = method.name;
  if (!method.compresses) options.cache.budget = {};
  return options;
}

Result<std::vector<std::unique_ptr<BenchEngine>>> make_engines(const Model& model, const Options& options,
                                                               const BenchOptions& bench) {
  const int longest = std::ranges::max(bench.depths) + std::max(bench.n_prompt, bench.n_gen + 1);
  const int n_ctx = options.ctx_size > 0 ? options.ctx_size : longest;
  if (longest > n_ctx) {
    return Error{Error::Kind::too_long,
                 fmt::format("the longest run has {} tokens, the context (-c) {}", longest, n_ctx)};
  }
  std::vector<std::unique_ptr<BenchEngine>> engines;
  for (const std::string& method : split(options.cache.method)) {
    const Options one = for_method(options, **require_method(method));
    Result<std::unique_ptr<BenchEngine>> engine = make_qevict_engine(model, one, n_ctx);
    if (!engine) return engine.error();
    engines.push_back(*std::move(engine));
  }
  return engines;
}

Result<void> check(const Options& options) {
  for (const std::string& name : split(options.cache.method)) {
    const Result<const Method*> method = require_method(name);
    if (!method) return method.error();
    const Result<void> checked = check_cache_options(for_method(options, **method), **method);
    if (!checked) return checked.error();
  }
  return {};
}

int run(Options& options, const BenchOptions& bench) {
  if (bench.n_prompt == 0 && bench.n_gen == 0) return fail(invalid("-p 0 with -n 0 leaves nothing to measure"));
  // The default budget is that of the request here, so that it means the same at every depth.
  if (!options.cache.budget.ratio && !options.cache.budget.bytes) options.cache.budget.ratio = kDefaultBudgetRatio;
  if (options.cache.budget.ratio && !options.cache.budget_base) options.cache.budget_base = BudgetBase::request;
  if (const Result<void> checked = check(options); !checked) return fail(checked.error());
  if (const Result<void> completed = complete(options); !completed) return fail(completed.error());
  const Result<Model> model = Model::load(options.model);
  if (!model) return fail(model.error());
  Result<std::vector<std::unique_ptr<BenchEngine>>> engines = make_engines(*model, options, bench);
  if (!engines) return fail(engines.error());

  print_note(fmt::format("qevict {}, {} ({}), SIMD {}, budget {}, -p {} -n {} -r {}", version(), model->info().name,
                         model->info().weights, simd_target(), options.cache.budget.to_string(), bench.n_prompt,
                         bench.n_gen, bench.repetitions));
  std::vector<Json> all;
  Output output;
  {
    Bench measuring(bench, *model, *std::move(engines));
    for (const int depth : bench.depths) {
      Result<std::vector<Json>> rows = measuring.at_depth(depth);
      if (!rows) return fail(rows.error());
      for (Json& row : *rows) {
        row["model"] = {{"path", model->info().path}, {"name", model->info().name}, {"weights", model->info().weights}};
        row["kv_budget"] = options.cache.budget.to_string();
        row["simd"] = simd_target();
        row["version"] = version();
      }
      if (bench.format == BenchFormat::jsonl) output.write(bench_text(*rows, bench.format));
      std::ranges::move(*rows, std::back_inserter(all));
    }
  }
  if (bench.format != BenchFormat::jsonl) output.write(bench_text(all, bench.format));
  const Result<void> written = output.status();
  return written ? kExitOk : fail(written.error());
}

}  // namespace

Command add_bench(CLI::App& command, Options& options) {
  const auto bench = std::make_shared<BenchOptions>();  // lives as long as the options' callbacks and the command
  add_model_options(command, options);
  add_cache_options(command, options);
  command.get_option("--kv-method")->description("methods to compare: a,b,c");
  add_int(command, "-p,--n-prompt", 0, kMostTokens, "tokens of the timed prompt (default 512)",
          [bench](int value) { bench->n_prompt = value; });
  add_int(command, "-n,--n-gen", 0, kMostTokens, "timed decode steps (default 32)",
          [bench](int value) { bench->n_gen = value; });
  add_text(command, "-d,--n-depth", "N,N,...", "tokens in the cache before either, untimed (default 0)",
           [bench](const std::string& text) { bench->depths = parse_depths(text); });
  add_int(command, "-r,--repetitions", 1, 10000, "timed repetitions, after one that is not (default 5)",
          [bench](int value) { bench->repetitions = value; });
  add_text(command, "-o,--output", "md|csv|json|jsonl", "form of the result (default md)",
           [bench](const std::string& text) { bench->format = parse_format(text); });
  return [&options, bench] { return run(options, *bench); };
}

}  // namespace qevict::app
