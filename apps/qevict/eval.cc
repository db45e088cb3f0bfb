// qevict eval: how much a method's compressed cache changes what the model says. A table of tasks, one file each.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "commands.h"
#include "environment.h"
#include "eval_codec.h"
#include "eval_tasks.h"
#include "messages.h"

namespace qevict::app {
namespace {

struct EvalTask {
  std::string_view name;
  std::string_view summary;
  std::string_view options;  // those of kOwnOptions it takes, each between spaces; --kv: methods are compared
  int (*run)(Options&, const EvalOptions&);
};

int run_codec(Options& options, const EvalOptions& eval) {
  return eval_codec(options, {.text = eval.text, .calibration = eval.calibration, .n_tokens = options.ctx_size});
}

constexpr EvalTask kTasks[] = {
    {"perplexity", "divergence from the full cache while decoding", " --kv --text --ctx-size --prefill --chunks ",
     run_perplexity},
    {"facts", "numbers hidden in a text, asked for after it was compressed",
     " --kv --text --ctx-size --facts --samples --questions --seed ", run_facts},
    {"generation", "a greedy text beside the full cache's", " --kv --text --prefill --n-predict ", run_generation},
    {"codec", "error of scores and outputs of each codec, on synthetic data and on --text",
     " --text --ctx-size --calibration ", run_codec},
    {"calibrate", "writes --out, key ranges and levels of codecs nuq2, nuq3 and nuq4, from --text",
     " --text --ctx-size --chunks --out ", run_calibrate},
    {"f32-copy", "writes --out, the model with f32 weights, which divergence is measured on", " --out ", run_f32_copy},
};

// Those that belong to some tasks only.
constexpr std::string_view kOwnOptions[] = {"--text",      "--ctx-size", "--prefill",    "--chunks",
                                            "--facts",     "--samples",  "--questions",  "--seed",
                                            "--n-predict", "--out",      "--calibration"};

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const EvalTask& task : kTasks) names.emplace_back(task.name);
  return names;
}

std::string task_help() {
  std::string text = "what to measure:";
  for (const EvalTask& task : kTasks) text += fmt::format("\n{}: {}", task.name, task.summary);
  return text;
}

int run(const CLI::App& command, Options& options, const EvalOptions& eval) {
  const auto* task = std::ranges::find(kTasks, eval.task, &EvalTask::name);
  if (task == std::end(kTasks)) {
    const std::string near = nearest(eval.task, task_names());
    return fail(invalid("unknown task '{}'{}; known: {}", eval.task,
                        near.empty() ? "" : fmt::format(", did you mean {}?", near), fmt::join(task_names(), ", ")));
  }
  for (const std::string_view option : kOwnOptions) {
    const bool takes = task->options.find(fmt::format(" {} ", option)) != std::string_view::npos;
    if (!takes && typed(command, std::string(option))) {
      return fail(invalid("{} is not an option of eval {}", option, task->name));
    }
  }
  const bool compares = task->options.find(" --kv ") != std::string_view::npos;
  for (const CLI::Option* option : command.parse_order()) {
    const std::string flag = option->get_lnames().empty() ? "" : "--" + option->get_lnames().front();
    const bool of_cache = flag.starts_with("--kv-") || flag == "--budget-base" || flag == "--no-promotion";
    if (of_cache && !compares) {
      return fail(invalid("{} is not an option of eval {}, which compares no methods", flag, task->name));
    }
  }
  return task->run(options, eval);
}

}  // namespace

Command add_eval(CLI::App& command, Options& options) {
  const auto eval = std::make_shared<EvalOptions>();
  command.add_option("TASK", eval->task, task_help())->required();
  add_model_options(command, options);
  add_cache_options(command, options);
  command.get_option("--kv-method")
      ->description(
          "methods to compare with the full cache: a,b,c; one with options of its own: a:budget=10%:window=16");
  command.get_option("--kv-budget")
      ->description("bytes of the whole cache, or percent of an f16 cache of a chunk or document (default 20%)");
  add_text(command, "--text", "FILE", "the text to measure on", [eval](const std::string& text) { eval->text = text; });
  command.get_option("--ctx-size")
      ->description(
          "perplexity: tokens of a chunk (default 2304); facts: of a document (default 2048); codec: of a sample "
          "(default 1029); calibrate: of a sample (default 2048)");
  add_int(command, "--prefill", 1, 1 << 26,
          "tokens read before decoding starts (perplexity: default 8/9 of a chunk; generation: default 512)",
          [eval](int value) { eval->prefill_tokens = value; });
  add_int(command, "--chunks", 1, 1 << 20, "perplexity: most chunks (default 8); calibrate: most samples (default 16)",
          [eval](int value) { eval->chunks = value; });
  add_int(command, "--facts", 1, 1000, "facts: facts in a document (default 16)",
          [eval](int value) { eval->facts = value; });
  add_int(command, "--samples", 1, 1 << 20, "facts: documents, of different stretches of the text (default 4)",
          [eval](int value) { eval->samples = value; });
  add_int(command, "--questions", 1, 1000,
          "facts: questions after each reading of the document; 1: all meet the cache as just compressed (default 4)",
          [eval](int value) { eval->questions_per_reading = value; });
  add_int(command, "-s,--seed", 0, 1 << 30, "facts: names and numbers (default 1)",
          [eval](int value) { eval->seed = value; });
  add_int(command, "-n,--n-predict", 1, 1 << 26, "generation: new tokens (default 1500)",
          [&options](int value) { options.n_predict = value; });
  add_text(command, "--out", "FILE",
           "f32-copy: the file to write; calibrate: likewise (default: the model's name with .nuq)",
           [eval](const std::string& text) { eval->out = text; });
  add_text(command, "--calibration", "FILE", "codec: what eval calibrate wrote, for nuq2, nuq3 and nuq4",
           [eval](const std::string& text) { eval->calibration = text; });
  add_json_option(command, options);
  return [&command, &options, eval] { return run(command, options, *eval); };
}

}  // namespace qevict::app
