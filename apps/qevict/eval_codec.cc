#include "eval_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "eval/calibrate.h"
#include "eval/codec_error.h"
#include "messages.h"
#include "summary.h"
#include "terminal.h"

namespace qevict::app {
namespace {

constexpr int kQueryRows = 8;  // of the text's last tokens
constexpr int kSinks = 5;
constexpr int kDefaultTokens = 1029;  // a whole number of windows of 32 and the sinks
constexpr int kFewestTokens = 64;
constexpr int kMostTokens = 1 << 15;

struct Measured {
  std::string data;
  int head_dim;
  int n_samples;  // KV heads
  int n_tokens;
  std::vector<CodecError> errors;
};

Measured measure(const AttentionSet& set) {
  const AttentionSample& first = set.samples.front();
  return {set.name, first.key_dim, static_cast<int>(set.samples.size()), first.n_tokens(), codec_errors(set)};
}

Json json_of(const Measured& measured) {
  Json rows = Json::array();
  for (const CodecError& error : measured.errors) {
    rows.push_back({{"codec", error.codec},
                    {"window_tokens", error.window_tokens},
                    {"bytes_per_token", error.bytes_per_token},
                    {"bits_per_element", error.bits_per_element},
                    {"bytes_per_head", error.bytes_per_head},
                    {"score_error", error.scores},
                    {"output_error", error.outputs},
                    {"output_cosine", error.cosine},
                    {"kl", error.kl}});
  }
  return {{"data", measured.data},
          {"head_dim", measured.head_dim},
          {"n_kv_heads", measured.n_samples},
          {"n_tokens", measured.n_tokens},
          {"codecs", rows}};
}

std::string table_of(const Measured& measured) {
  std::string text = fmt::format("\n{}: head size {}, {} KV heads of {} tokens\n\n", measured.data, measured.head_dim,
                                 measured.n_samples, measured.n_tokens);
  text += "| codec | window | bytes per token | true bits per element | scores | outputs | cosine | KL |\n";
  text += "|---|---|---|---|---|---|---|---|\n";
  for (const CodecError& error : measured.errors) {
    text +=
        fmt::format("| {} | {} | {} | {:.4g} | {:.3g} | {:.3g} | {:.6f} | {:.3g} |\n", error.codec, error.window_tokens,
                    error.bytes_per_token, error.bits_per_element, error.scores, error.outputs, error.cosine, error.kl);
  }
  return text;
}

// calibration: read if one is asked for.
Result<AttentionSet> capture(Options& options, const EvalCodecOptions& eval, int n_threads,
                             NuqCalibration& calibration) {
  const Result<std::string> text = read_whole(eval.text);
  if (!text) return text.error();
  if (const Result<void> completed = complete(options); !completed) return completed.error();
  const Result<Model> model = Model::load(options.model);
  if (!model) return model.error();
  if (!eval.calibration.empty()) {
    Result<NuqCalibration> read = read_nuq(eval.calibration, nuq_model(model->info()));
    if (!read) return read.error();
    calibration = *std::move(read);
  }
  Result<std::vector<Token>> tokens = model->tokenize(*text, true, false);
  if (!tokens) return tokens.error();
  if (tokens->size() < kFewestTokens) {
    return invalid("{} has {} tokens: give a text of at least {}", eval.text, tokens->size(), kFewestTokens);
  }
  tokens->resize(std::min(
      {tokens->size(), static_cast<std::size_t>(eval.n_tokens), static_cast<std::size_t>(model->info().n_ctx_train)}));
  Result<AttentionSet> set = capture_attention(*model, *tokens, kQueryRows, n_threads);
  if (set) set->name = fmt::format("{} over {}", model->info().name, eval.text);
  if (set && !eval.calibration.empty()) set->calibration = &calibration;
  return set;
}

}  // namespace

int eval_codec(Options& options, EvalCodecOptions eval) {
  if (eval.n_tokens == 0) eval.n_tokens = kDefaultTokens;
  if (eval.n_tokens < kFewestTokens) {
    return fail(invalid("--ctx-size {} is too short to measure on: give at least {}", eval.n_tokens, kFewestTokens));
  }
  if (eval.n_tokens > kMostTokens) {
    return fail(invalid("--ctx-size {} takes too long to measure on: give at most {}", eval.n_tokens, kMostTokens));
  }
  if (eval.text.empty() && !eval.calibration.empty()) {
    return fail(invalid("--calibration {} is of a model: give --text, too", eval.calibration));
  }
  std::vector<Measured> results;
  int head_dim = 64;
  if (!eval.text.empty()) {
    const int n_threads =
        options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    NuqCalibration calibration;
    Result<AttentionSet> set = capture(options, eval, n_threads, calibration);
    if (!set) return fail(set.error());
    head_dim = set->samples.front().key_dim;
    const std::string name = set->name;
    for (const int sinks : {kSinks, 0}) {
      set->sink_tokens = sinks;
      set->name = fmt::format("{}, {}", name, sinks > 0 ? fmt::format("the first {} tokens kept", sinks) : "all coded");
      if (interrupted()) return fail_interrupted();
      results.push_back(measure(*set));
    }
  }
  for (const AttentionSet& set : synthetic_attention(head_dim, eval.n_tokens)) {
    if (interrupted()) return fail_interrupted();
    results.push_back(measure(set));
  }
  Output output;
  if (options.json) {
    Json json = {{"task", "codec"}, {"version", version()}, {"results", Json::array()}};
    for (const Measured& measured : results) json["results"].push_back(json_of(measured));
    output.write(to_text(json, 2) + "\n");
  } else {
    for (const Measured& measured : results) output.write(table_of(measured));
  }
  const Result<void> written = output.status();
  return written ? kExitOk : fail(written.error());
}

}  // namespace qevict::app
