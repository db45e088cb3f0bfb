// qevict generate: continues a text.
#include <fmt/format.h>

#include <chrono>

#include "commands.h"
#include "loaded.h"
#include "messages.h"
#include "progress.h"
#include "summary.h"
#include "terminal.h"

namespace qevict::app {
namespace {

Result<std::string> read_prompt(const Options& options) {
  if (options.prompt) return *options.prompt;
  if (options.file) return read_whole(*options.file);
  if (LineReader::is_terminal()) return invalid("no prompt: give one with -p TEXT or -f FILE, or pipe it in");
  return read_whole("-");
}

Result<void> check(const Options& options) {
  const Result<const Method*> method = require_method(options.cache.method);
  if (!method) return method.error();
  return check_cache_options(options, **method);
}

int run(Options& options) {
  if (const Result<void> checked = check(options); !checked) return fail(checked.error());
  const Result<std::string> prompt = read_prompt(options);
  if (interrupted()) return kExitInterrupted;
  if (!prompt) return fail(prompt.error());
  if (const Result<void> completed = complete(options); !completed) return fail(completed.error());
  const GenerateOptions generate_as = generate_options(options, kDefaultPredict);
  const Result<std::unique_ptr<Loaded>> opened = Loaded::open(options, generate_as);
  if (!opened) return fail(opened.error());
  Loaded& loaded = **opened;

  const auto start = std::chrono::steady_clock::now();
  const Result<std::vector<Token>> tokens = loaded.model().tokenize(*prompt, true, true);
  if (!tokens) return fail(tokens.error());
  const double text_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

  Output output;
  ProgressBar bar("reading the prompt");
  GenerateCallbacks callbacks;
  callbacks.progress = [&](std::int64_t done, std::int64_t total) {
    bar.update(done, total);
    return !interrupted();
  };
  callbacks.stop = [] { return interrupted(); };
  callbacks.text = [&](std::string_view piece) {
    bar.finish();
    return options.json || output.write(piece);
  };
  const Result<Generation> answer = generate(loaded.model(), loaded.session(), *tokens, generate_as, callbacks);
  bar.finish();
  if (!answer) return fail(answer.error());
  if (output.is_terminal() && !output.at_line_start()) output.write("\n");

  RunStats stats;
  stats.add(*answer, text_ms, loaded.session());
  if (options.json) {
    Json json = {{"text", answer->text}};
    json.update(
        summary_json(loaded.model().info(), loaded.session(), stats, loaded.settings(), loaded.rss_peak_bytes()));
    output.write(to_text(json, 2) + "\n");
  } else {
    print_note("\n" + summary_text(loaded.model().info(), loaded.session(), stats, loaded.settings()));
  }
  if (const Result<void> written = output.status(); !written) return fail(written.error());
  return answer->stop == StopReason::interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace

Command add_generate(CLI::App& command, Options& options) {
  add_prompt_options(command, options);
  add_model_options(command, options);
  add_sampling_options(command, options);
  add_cache_options(command, options);
  add_json_option(command, options);
  add_print_settings_option(command, options);
  return [&options] { return run(options); };
}

}  // namespace qevict::app
