// qevict bench: speed and memory, method beside method and beside llama.cpp, in one process and interleaved (A B A B
// ...).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <sstream>
#include <thread>

#include "bench_kernels.h"
#include "bench_report.h"
#include "bench_rss.h"
#include "bench_run.h"
#include "commands.h"
#include "memory.h"
#include "messages.h"
#include "rival_llama.h"
#include "terminal.h"

namespace qevict::app {
namespace {

constexpr int kMostTokens = 1 << 26;
constexpr int kRssSteps = 16;  // decoded after the prefill whose memory is measured: enough for a routing

struct BenchOptions {
  BenchPlan plan;
  bool repetitions_given = false;
  bool depths_given = false;
  std::vector<RivalSpec> rivals;
  BenchFormat format = BenchFormat::markdown;
  bool kernels = false;
  bool rss = false;
  std::optional<RssTask> rss_task;  // this process is one of those
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
  for (const int depth : depths) {
    if (std::ranges::count(depths, depth) > 1)
      throw CLI::ValidationError("--n-depth", fmt::format("names {} twice", depth));
  }
  return depths;
}

BenchFormat parse_format(const std::string& text) {
  const auto at = std::ranges::find(kBenchFormats, text);
  if (at == std::end(kBenchFormats)) {
    throw CLI::ValidationError("--output", fmt::format("'{}' is none of {}", text, fmt::join(kBenchFormats, ", ")));
  }
  return static_cast<BenchFormat>(at - std::begin(kBenchFormats));
}

std::vector<RivalSpec> parse_vs(const std::string& text) {
  Result<std::vector<RivalSpec>> rivals = parse_rivals(text);
  if (!rivals) throw CLI::ValidationError("--vs", rivals.error().message);
  return *std::move(rivals);
}

// One budget for all methods of a run: those that keep everything take none.
Options for_method(Options options, const Method& method) {
  options.cache.method = method.name;
  if (!method.takes_budget()) {
    options.cache.budget = {};
    options.cache.budget_base.reset();
  }
  return options;
}

// The engines of a run, in the order of their rows: methods, then rivals.
class Engines {
 public:
  Engines(const Options& options, const BenchOptions& bench) : options_(options), bench_(bench) {
    for (const std::string& name : split(options.cache.method)) methods_.push_back(name);
  }

  std::size_t size() const { return methods_.size() + bench_.rivals.size(); }

  Result<void> check() const {
    if (methods_.empty()) return invalid("--kv-method names no method");
    for (const std::string& name : methods_) {
      const Result<const Method*> method = require_method(name);
      if (!method) return method.error();
      if (std::ranges::count(methods_, name) > 1) return invalid("--kv-method names {} twice", name);
      const Result<void> checked = check_cache_options(for_method(options_, **method), **method);
      if (!checked) return checked.error();
    }
    return {};
  }

  // Loads the weights of engine `i` if they are not there yet.
  Result<void> load(std::size_t i) {
    if (i < methods_.size()) return load_model();
    if (rival_) return {};
    const int threads =
        options_.threads > 0 ? options_.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    Result<std::unique_ptr<LlamaRival>> rival = LlamaRival::load(options_.model, threads);
    if (!rival) return rival.error();
    rival_ = *std::move(rival);
    return {};
  }
  Result<void> load_model() {
    if (model_) return {};
    Result<Model> model = Model::load(options_.model);
    if (!model) return model.error();
    model_ = std::make_unique<Model>(*std::move(model));
    return {};
  }

  // REQUIRES: load(i).
  Result<std::unique_ptr<BenchEngine>> make(std::size_t i, int n_ctx) const {
    if (i < methods_.size()) {
      return make_qevict_engine(*model_, for_method(options_, **require_method(methods_[i])), n_ctx);
    }
    return rival_->make_engine(bench_.rivals[i - methods_.size()], model_ ? model_->info().kv_bytes_per_token : 0,
                               n_ctx);
  }

  const Model& model() const { return *model_; }
  int n_vocab() const { return model_ ? model_->info().n_vocab : rival_->n_vocab(); }

 private:
  const Options& options_;
  const BenchOptions& bench_;
  std::vector<std::string> methods_;
  std::unique_ptr<Model> model_;  // a fixed place: sessions refer to it
  std::unique_ptr<LlamaRival> rival_;
};

Result<int> context_size(const Options& options, const BenchPlan& plan) {
  const std::int64_t longest = plan.longest_context();
  const std::int64_t most = options.ctx_size > 0 ? options.ctx_size : kMostTokens;
  if (longest <= most) return static_cast<int>(longest);
  return Error{Error::Kind::too_long,
               fmt::format("the longest run has {} tokens, more than the {} of {}: take smaller -d, -p, -n or -r",
                           longest, most, options.ctx_size > 0 ? "the context (-c)" : "any context")};
}

// The other end of measure_rss(): one prefill of everything that is read before decoding, and a few steps.
Result<std::size_t> rss_of(Engines& engines, const Options& options, const BenchPlan& plan, const RssTask& task) {
  if (task.engine >= engines.size()) return invalid("there is no engine {}", task.engine);
  if (const Result<void> loaded = engines.load(task.engine); !loaded) return loaded.error();
  const int n_prompt = std::max(1, task.depth + plan.n_prompt);
  const int n_steps = std::min(plan.n_gen, kRssSteps);
  const std::vector<Token> random = random_tokens(n_prompt + n_steps, engines.n_vocab());
  const std::span<const Token> tokens = random;
  const BenchProgress progress = [](double) { return !interrupted(); };
  MemoryMark memory;
  memory.start(options.model);
  Result<std::unique_ptr<BenchEngine>> engine = engines.make(task.engine, n_prompt + n_steps);
  if (!engine) return engine.error();
  const auto filled = (*engine)->fill(tokens.first(static_cast<std::size_t>(n_prompt)), n_steps, progress);
  if (!filled) return filled.error();
  if (n_steps > 0) {
    const auto decoded = (*engine)->decode(tokens.last(static_cast<std::size_t>(n_steps)), progress);
    if (!decoded) return decoded.error();
  }
  return memory.above_start();
}

int run_rss(Engines& engines, const Options& options, const BenchOptions& bench) {
  const Result<std::size_t> bytes = rss_of(engines, options, bench.plan, *bench.rss_task);
  if (!bytes) return fail(bytes.error());
  Output output;
  output.write(fmt::format("{}\n", *bytes));
  const Result<void> written = output.status();
  return written ? kExitOk : fail(written.error());
}

// Of every depth, of every engine.
Result<std::vector<std::vector<std::size_t>>> all_rss(const Engines& engines, const BenchPlan& plan) {
  std::vector<std::vector<std::size_t>> all;
  ProgressBar bar("peak memory");
  for (const int depth : plan.depths) {
    std::vector<std::size_t>& at_depth = all.emplace_back();
    for (std::size_t engine = 0; engine < engines.size(); ++engine) {
      const Result<std::size_t> bytes = measure_rss({engine, depth});
      if (!bytes) return bytes.error();
      at_depth.push_back(*bytes);
      bar.update(static_cast<std::int64_t>(all.size() * engines.size() - engines.size() + engine + 1),
                 static_cast<std::int64_t>(plan.depths.size() * engines.size()));
    }
  }
  return all;
}

void add_run_fields(Json& row, const Options& options, const ModelInfo& info) {
  row["model"] = {{"path", info.path}, {"name", info.name}, {"weights", info.weights}};
  row["kv_budget"] = options.cache.budget.to_string();
  row["n_threads"] = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  row["simd"] = simd_target();
  row["version"] = version();
}

void add_depth_ratio(Json& row, const Json& first) {
  if (!row.contains("decode_tps") || row["depth"] == first["depth"]) return;
  row["decode_vs_first_depth"] =
      row["decode_tps"]["median"].get<double>() / first["decode_tps"]["median"].get<double>();
}

Result<void> measure_all(Engines& engines, const Options& options, const BenchOptions& bench) {
  const BenchPlan& plan = bench.plan;
  const Result<int> n_ctx = context_size(options, plan);
  if (!n_ctx) return n_ctx.error();
  std::vector<std::vector<std::size_t>> rss;
  if (bench.rss) {  // first, while this process takes nothing
    auto measured = all_rss(engines, plan);
    if (!measured) return measured.error();
    rss = *std::move(measured);
  }
  if (const Result<void> loaded = engines.load_model(); !loaded) return loaded.error();
  std::vector<std::unique_ptr<BenchEngine>> made;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    if (const Result<void> loaded = engines.load(i); !loaded) return loaded.error();
    Result<std::unique_ptr<BenchEngine>> engine = engines.make(i, options.ctx_size > 0 ? options.ctx_size : *n_ctx);
    if (!engine) return engine.error();
    made.push_back(*std::move(engine));
  }
  const ModelInfo& info = engines.model().info();
  print_note(fmt::format("qevict {}, {} ({}), SIMD {}, budget {}, -p {} -n {} -r {}", version(), info.name,
                         info.weights, simd_target(), options.cache.budget.to_string(), plan.n_prompt, plan.n_gen,
                         plan.repetitions));
  std::vector<Json> all;
  Output output;
  BenchRun measuring(plan, info.n_vocab, std::move(made));
  for (const int depth : plan.depths) {
    Result<std::vector<Measured>> measured = measuring.at_depth(depth);
    const bool stopped = !measured && measured.error().kind == Error::Kind::interrupted;
    if (stopped && !all.empty()) break;  // earlier depths stand
    if (stopped) return Error{Error::Kind::interrupted, "interrupted before the first repetition: nothing is measured"};
    if (!measured) return measured.error();
    for (std::size_t i = 0; i < rss.size() && i < plan.depths.size(); ++i) {
      if (plan.depths[i] != depth) continue;
      for (std::size_t engine = 0; engine < measured->size(); ++engine)
        (*measured)[engine].row["rss_peak_bytes"] = rss[i][engine];
    }
    if (!bench.rivals.empty()) add_ratios(*measured, "llama.cpp", bench.rivals.front().kv_type);
    std::vector<Json> rows;
    for (Measured& one : *measured) {
      if (!all.empty()) add_depth_ratio(one.row, all[rows.size()]);
      add_run_fields(one.row, options, info);
      rows.push_back(std::move(one.row));
    }
    if (bench.format == BenchFormat::jsonl) output.write(bench_text(rows, bench.format));
    std::ranges::move(rows, std::back_inserter(all));
    if (interrupted()) break;
  }
  measuring.finish();
  for (const Json& row : all) {
    print_raised(fmt::format("{} at {}", row["method"].get<std::string>(), row["depth"].get<int>()), row);
  }
  if (bench.format != BenchFormat::jsonl) output.write(bench_text(all, bench.format));
  if (bench.format == BenchFormat::markdown && !bench.rivals.empty()) {
    print_note(fmt::format("rival: llama.cpp, cache type {}, the better of flash attention on and off for each figure",
                           bench.rivals.front().kv_type));
  }
  if (const Result<void> written = output.status(); !written) return written.error();
  if (!interrupted()) return {};
  const Json& last = all.back();
  return Error{Error::Kind::interrupted,
               fmt::format("interrupted: depth {} has {} of {} repetitions{}", last["depth"].get<int>(),
                           last["repetitions"].get<int>(), plan.repetitions,
                           last["depth"] == plan.depths.back() ? "" : ", later ones are missing")};
}

Result<void> check_plan(const BenchPlan& plan) {
  if (plan.n_prompt == 0 && plan.n_gen == 0) return invalid("-p 0 with -n 0 leaves nothing to measure");
  if (plan.after_prompt && (plan.n_prompt == 0 || plan.n_gen == 0)) {
    return invalid("--after-prompt needs a prompt (-p) and tokens to decode (-n)");
  }
  if (plan.keep_fill && plan.n_prompt > 0) {
    return invalid("--keep-fill is for decoding alone and contradicts -p {}: give -p 0", plan.n_prompt);
  }
  return {};
}

// The kernels have no method, no model and one size.
Result<void> check_kernels(const Options& options, const BenchOptions& bench) {
  constexpr int kFewest = 32, kMost = 1 << 17;  // 90 heads of f16 tokens are then 3 GB
  const int depth = bench.plan.depths.front();
  if (bench.plan.depths.size() > 1) return invalid("--kernels takes one -d, got {}", bench.plan.depths.size());
  if (bench.depths_given && (depth < kFewest || depth > kMost)) {
    return invalid("--kernels takes -d from {} to {} tokens, got {}", kFewest, kMost, depth);
  }
  const std::pair<bool, const char*> without_effect[] = {{options.cache.method != CacheConfig{}.method, "--kv-method"},
                                                         {!bench.rivals.empty(), "--vs"},
                                                         {bench.rss, "--rss"},
                                                         {bench.plan.after_prompt, "--after-prompt"},
                                                         {bench.plan.keep_fill, "--keep-fill"}};
  for (const auto& [given, flag] : without_effect)
    if (given) return invalid("{} contradicts --kernels, which times kernels alone", flag);
  return {};
}

int run(Options& options, const BenchOptions& bench) {
  if (bench.kernels) {
    if (const Result<void> checked = check_kernels(options, bench); !checked) return fail(checked.error());
    if (const Result<void> completed = complete(options); !completed) return fail(completed.error());
    return bench_kernels(options, {.n_tokens = bench.depths_given ? bench.plan.depths.front() : 7680,
                                   .repetitions = bench.repetitions_given ? bench.plan.repetitions : 11,
                                   .format = bench.format});
  }
  if (const Result<void> checked = check_plan(bench.plan); !checked) return fail(checked.error());
  // The default budget is that of the request here, so that it means the same at every depth.
  if (!options.cache.budget.ratio && !options.cache.budget.bytes) options.cache.budget.ratio = kDefaultBudgetRatio;
  if (options.cache.budget.ratio && !options.cache.budget_base) options.cache.budget_base = BudgetBase::request;
  Engines engines(options, bench);
  if (const Result<void> checked = engines.check(); !checked) return fail(checked.error());
  if (const Result<void> completed = complete(options); !completed) return fail(completed.error());
  if (bench.rss_task) return run_rss(engines, options, bench);
  const Result<void> measured = measure_all(engines, options, bench);
  return measured ? kExitOk : fail(measured.error());
}

}  // namespace

Command add_bench(CLI::App& command, Options& options) {
  const auto bench = std::make_shared<BenchOptions>();  // lives as long as the options' callbacks and the command
  BenchPlan& plan = bench->plan;
  add_model_options(command, options);
  add_cache_options(command, options);
  command.get_option("--kv-method")->description("methods to compare: a,b,c");
  command.get_option("--kv-budget")
      ->description("bytes of the whole cache, or percent of an f16 cache of all that a run holds (default 20%)");
  add_int(command, "-p,--n-prompt", 0, kMostTokens, "tokens of the timed prompt (default 512)",
          [&plan](int value) { plan.n_prompt = value; });
  add_int(command, "-n,--n-gen", 0, kMostTokens, "timed decode steps (default 32)",
          [&plan](int value) { plan.n_gen = value; });
  add_text(command, "-d,--n-depth", "N,N,...",
           "tokens in the cache before either, untimed (default 0); a cache of ours reads them anew for every "
           "repetition, llama.cpp's goes back to them, which is the same and costs nothing",
           [bench](const std::string& text) {
             bench->plan.depths = parse_depths(text);
             bench->depths_given = true;
           });
  add_int(command, "-r,--repetitions", 1, 10000, "timed repetitions, after one that is not (default 5)",
          [bench](int value) {
            bench->plan.repetitions = value;
            bench->repetitions_given = true;
          });
  add_text(command, "--vs", "llama.cpp[:f16|q8_0|q4_0][:fa|nofa],...",
           "measure llama.cpp in the same run, on the same model, threads and tokens, and print ratios to it: to the "
           "first cache type named (default f16, flash attention on and off)",
           [bench](const std::string& text) { bench->rivals = parse_vs(text); });
  add_switch(command, "--after-prompt",
             "decode behind the timed prompt, not at the depth: one prefill gives both figures", plan.after_prompt);
  add_switch(command, "--keep-fill",
             "with -p 0: fill a cache of ours once and decode on from there in every repetition, so that it is -n "
             "tokens deeper each time (cheaper; the budget counts all of them)",
             plan.keep_fill);
  add_switch(command, "--rss", "measure also the peak memory above the weights, in a process of its own for each row",
             bench->rss);
  add_switch(command, "--kernels",
             "time the attention kernels instead, against the memory's bandwidth and ggml's (-d: tokens, default "
             "7680; -r: default 11; --simd: that instruction set only)",
             bench->kernels);
  add_text(command, "-o,--output", "md|csv|json|jsonl", "form of the result (default md)",
           [bench](const std::string& text) { bench->format = parse_format(text); });
  command
      .add_option_function<std::string>(kRssFlag,
                                        [bench](const std::string& text) {
                                          const Result<RssTask> task = RssTask::parse(text);
                                          if (!task) throw CLI::ValidationError(kRssFlag, task.error().message);
                                          bench->rss_task = *task;
                                        })
      ->group("");  // for measure_rss() alone, not in the help
  return [&options, bench] { return run(options, *bench); };
}

}  // namespace qevict::app
