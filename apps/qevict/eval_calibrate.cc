// qevict eval calibrate: what KVQuant's codecs know of a model beforehand.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "eval/calibrate.h"
#include "eval_tasks.h"
#include "messages.h"
#include "terminal.h"

namespace qevict::app {

int run_calibrate(Options& options, const EvalOptions& eval) {
  if (eval.text.empty()) return fail(invalid("--text FILE is missing: the text to calibrate on"));
  const Result<std::string> text = read_whole(eval.text);
  if (!text) return fail(text.error());
  if (const Result<void> completed = complete(options); !completed) return fail(completed.error());
  const std::string path = eval.out.empty() ? nuq_path(options.model) : eval.out;
  // Before the work, not after it.
  if (const Result<void> writable = check_new_file(path); !writable) return fail(writable.error());
  const Result<Model> model = Model::load(options.model);
  if (!model) return fail(model.error());
  const Result<std::vector<Token>> tokens = model->tokenize(*text, true, false);
  if (!tokens) return fail(tokens.error());

  CalibrationOptions how;
  how.n_threads =
      options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  how.samples = eval.chunks.value_or(how.samples);
  how.sample_tokens = options.ctx_size > 0 ? options.ctx_size : std::min(how.sample_tokens, model->info().n_ctx_train);
  EvalBar bar;
  const Result<NuqCalibration> calibration = calibrate_nuq(*model, *tokens, how, bar.progress());
  bar.finish();
  if (!calibration) return stopped_or_failed(calibration.error());
  if (const Result<void> written = write_nuq(*calibration, path); !written) return fail(written.error());

  const auto used =
      std::min(tokens->size(), static_cast<std::size_t>(how.samples) * static_cast<std::size_t>(how.sample_tokens));
  std::error_code problem;
  const auto bytes = std::filesystem::file_size(path, problem);
  const Json json = {{"task", "calibrate"},
                     {"version", version()},
                     {"text", eval.text},
                     {"tokens", used},
                     {"sample_tokens", how.sample_tokens},
                     {"file", path},
                     {"file_bytes", bytes}};
  return report(options, json, "", fmt::format("{}: {} bytes, from {} tokens of {}\n", path, bytes, used, eval.text));
}

}  // namespace qevict::app
