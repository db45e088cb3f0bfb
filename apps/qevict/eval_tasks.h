// The tasks of `qevict eval`, and what they share: one text, the methods to compare, one form of report.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/divergence.h"
#include "eval/kv_use.h"
#include "eval/progress.h"
#include "options.h"
#include "progress.h"
#include "summary.h"

namespace qevict::app {

// Options of `eval` beside those of all commands; a task takes those that its row names.
struct EvalOptions {
  std::string task;
  std::string text;  // file
  std::optional<int> prefill_tokens;
  std::optional<int> chunks;
  std::optional<int> facts;
  std::optional<int> samples;
  std::optional<int> questions_per_reading;
  int seed = 1;
  std::string out;          // file
  std::string calibration;  // file
};

int run_perplexity(Options& options, const EvalOptions& eval);
int run_facts(Options& options, const EvalOptions& eval);
int run_generation(Options& options, const EvalOptions& eval);
int run_f32_copy(Options& options, const EvalOptions& eval);
int run_calibrate(Options& options, const EvalOptions& eval);

// What a task works on.
struct EvalInput {
  Model model;
  std::vector<CacheConfig> caches;   // of --kv-method, in its order
  std::vector<std::string> methods;  // as typed, one for each of `caches`
  std::vector<Token> tokens;         // of the whole text
};
// add_special: the text's tokens begin with the model's start token.
Result<EvalInput> load_eval_input(Options& options, const EvalOptions& eval, bool add_special);

// --kv-method a,b:window=16:ranking=decayed: a method with its own values of the --kv- options (and budget-base,
// no-promotion) in place of those given for all. A method that keeps everything takes none of them.
struct EvalCaches {
  std::vector<CacheConfig> caches;
  std::vector<std::string> methods;
};
Result<EvalCaches> parse_caches(const Options& options);

// For tasks that always begin with the full cache: the other caches, and the labels of all rows.
std::vector<std::string> full_first(const EvalInput& input, std::vector<CacheConfig>& caches);

// Shows how far a task is; Ctrl-C stops it.
class EvalBar {
 public:
  EvalProgress progress();
  void finish() { bar_.finish(); }

 private:
  ProgressBar bar_{"evaluating"};
};

// The exit code of a task that failed, or was stopped.
int stopped_or_failed(const Error& error);

// What every task's JSON begins with, and of each result the cache's part and the settings in force.
Json eval_json(const std::string& task, const Options& options, const EvalOptions& eval, const Model& model);
Json estimate_json(const Estimate& estimate);
void add_kv_use(Json& json, const KvUse& kv);
Json settings_json(const std::vector<Setting>& settings);

// The JSON object, or a note for people and a table; the exit code.
int report(const Options& options, const Json& json, const std::string& note, const std::string& table);

}  // namespace qevict::app
