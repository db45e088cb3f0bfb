// qevict eval: how much a method's compressed cache changes what the model says.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "commands.h"
#include "eval/perplexity.h"
#include "eval_codec.h"
#include "messages.h"
#include "progress.h"
#include "summary.h"
#include "terminal.h"

namespace qevict::app {
namespace {

struct EvalOptions {
  std::string task;
  std::string text;  // file
  int chunk_tokens = 2304;
  int prefill_tokens = 0;  // 0: eight ninths of the chunk
  int chunks = 8;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

Json estimate_json(const Estimate& estimate) {
  return {{"value", estimate.value}, {"uncertainty", estimate.uncertainty}};
}

Json result_json(const PerplexityResult& result) {
  const DivergenceSummary& d = result.divergence;
  Json json = {{"method", result.method},
               {"tokens", d.n_tokens},
               {"kld_mean", d.kld.value},
               {"kld_mean_uncertainty", d.kld.uncertainty},
               {"kld_max", d.kld_max},
               {"kld_p999", d.kld_p999},
               {"kld_p99", d.kld_p99},
               {"kld_p95", d.kld_p95},
               {"kld_p90", d.kld_p90},
               {"kld_median", d.kld_median},
               {"same_top", d.same_top.value},
               {"same_top_uncertainty", d.same_top.uncertainty},
               {"ln_ppl_ratio", d.ln_ppl_ratio.value},
               {"ln_ppl_ratio_uncertainty", d.ln_ppl_ratio.uncertainty},
               {"ppl_full", estimate_json(d.base_ppl)},
               {"ppl", estimate_json(d.tested_ppl)},
               {"delta_p_mean", d.delta_p.value},
               {"delta_p_rms", d.rms_delta_p.value},
               {"kv_ratio_peak", result.kv_ratio_peak},
               {"kv_ratio_mean", result.kv_ratio_mean},
               {"kv_ratio_final", result.kv_ratio_final},
               {"kv_bytes_peak", result.kv_bytes_peak},
               {"kv_bytes_full", result.kv_bytes_full},
               {"seconds_per_token", result.seconds_per_token},
               {"promotions", result.promotions},
               {"demotions", result.demotions},
               {"evictions", result.evictions}};
  Json bins = Json::array();
  for (const DecodeBin& bin : result.bins) {
    bins.push_back(
        {{"first_step", bin.first_step}, {"tokens", bin.n_tokens}, {"kld_mean", bin.kld}, {"same_top", bin.same_top}});
  }
  json["by_decode_step"] = bins;
  Json settings = Json::object();
  for (const Setting& setting : result.settings) settings[setting.name] = setting.value;
  json["settings"] = settings;
  return json;
}

std::string table(const std::vector<PerplexityResult>& results) {
  std::string text = fmt::format("| method | KV ratio peak | mean | mean KL | 99 % | same top | ln(PPL/full) |");
  for (const DecodeBin& bin : results.front().bins) text += fmt::format(" KL from step {} |", bin.first_step);
  text += "\n|---|---|---|---|---|---|---|";
  for (std::size_t i = 0; i < results.front().bins.size(); ++i) text += "---|";
  text += "\n";
  for (const PerplexityResult& result : results) {
    const DivergenceSummary& d = result.divergence;
    text += fmt::format("| {} | {:.4f} | {:.4f} | {:.5f} ± {:.5f} | {:.4f} | {:.3f} ± {:.3f} | {:+.4f} ± {:.4f} |",
                        result.method, result.kv_ratio_peak, result.kv_ratio_mean, d.kld.value, d.kld.uncertainty,
                        d.kld_p99, d.same_top.value, d.same_top.uncertainty, d.ln_ppl_ratio.value,
                        d.ln_ppl_ratio.uncertainty);
    for (const DecodeBin& bin : result.bins) text += fmt::format(" {:.5f} |", bin.kld);
    text += "\n";
  }
  return text;
}

// One cache per method of the list; a method that keeps everything takes none of the cache options.
Result<std::vector<CacheConfig>> caches(const Options& options) {
  std::vector<CacheConfig> result;
  for (const std::string& name : split(options.cache.method)) {
    const Result<const Method*> method = require_method(name);
    if (!method) return method.error();
    CacheConfig cache = options.cache;
    cache.method = name;
    if (!(*method)->compresses) cache = {.method = name};
    result.push_back(cache);
  }
  if (result.empty()) return invalid("--kv-method names no method");
  return result;
}

int run(Options& options, EvalOptions eval) {
  if (eval.task == "codec") return eval_codec(options, {.text = eval.text, .n_tokens = options.ctx_size});
  if (eval.task != "perplexity") return fail(invalid("unknown task '{}'; known: perplexity, codec", eval.task));
  if (eval.text.empty()) return fail(invalid("--text FILE is missing: the text to measure on"));
  if (eval.prefill_tokens == 0) eval.prefill_tokens = eval.chunk_tokens * 8 / 9;
  if (eval.prefill_tokens >= eval.chunk_tokens - 1) {
    return fail(
        invalid("--prefill {} leaves nothing of --ctx-size {} to decode", eval.prefill_tokens, eval.chunk_tokens));
  }
  if (!options.cache.budget.ratio && !options.cache.budget.bytes) options.cache.budget.ratio = kDefaultBudgetRatio;
  const Result<std::vector<CacheConfig>> configs = caches(options);
  if (!configs) return fail(configs.error());
  const Result<std::string> text = read_whole(eval.text);
  if (!text) return fail(text.error());
  if (const Result<void> completed = complete(options); !completed) return fail(completed.error());
  const Result<Model> model = Model::load(options.model);
  if (!model) return fail(model.error());
  const Result<std::vector<Token>> tokens = model->tokenize(*text, true, false);
  if (!tokens) return fail(tokens.error());

  ProgressBar bar("evaluating");
  const auto progress = [&](double share) {
    bar.update(static_cast<std::int64_t>(share * 10000), 10000);
    return !interrupted();
  };
  const Result<std::vector<PerplexityResult>> results = eval_perplexity(*model, *tokens,
                                                                        {.caches = *configs,
                                                                         .chunk_tokens = eval.chunk_tokens,
                                                                         .prefill_tokens = eval.prefill_tokens,
                                                                         .max_chunks = eval.chunks,
                                                                         .n_threads = options.threads},
                                                                        progress);
  bar.finish();
  if (!results) {
    if (results.error().kind == Error::Kind::interrupted) return kExitInterrupted;
    return fail(results.error());
  }
  Output output;
  if (options.json) {
    Json json = {
        {"task", "perplexity"},
        {"version", version()},
        {"model", {{"path", model->info().path}, {"name", model->info().name}, {"weights", model->info().weights}}},
        {"text", eval.text},
        {"ctx_size", eval.chunk_tokens},
        {"prefill", eval.prefill_tokens},
        {"kv_budget", options.cache.budget.to_string()}};
    json["results"] = Json::array();
    for (const PerplexityResult& result : *results) json["results"].push_back(result_json(result));
    output.write(to_text(json, 2) + "\n");
  } else {
    print_note(fmt::format("{} ({}), {}: chunks of {} tokens, {} read, the rest decoded; budget {}", model->info().name,
                           model->info().weights, eval.text, eval.chunk_tokens, eval.prefill_tokens,
                           options.cache.budget.to_string()));
    output.write(table(*results));
  }
  const Result<void> written = output.status();
  return written ? kExitOk : fail(written.error());
}

}  // namespace

Command add_eval(CLI::App& command, Options& options) {
  const auto eval = std::make_shared<EvalOptions>();
  command
      .add_option("TASK", eval->task,
                  "perplexity: divergence from the full cache while decoding; codec: what each codec does to attention")
      ->required();
  add_model_options(command, options);
  add_cache_options(command, options);
  command.get_option("--kv-method")->description("methods to compare with the full cache: a,b,c");
  add_text(command, "--text", "FILE", "the text to measure on", [eval](const std::string& text) { eval->text = text; });
  command.get_option("--ctx-size")->description("tokens of a chunk (default 2304)");
  add_int(command, "--prefill", 1, 1 << 26, "tokens of a chunk read before decoding starts (default 8/9 of it)",
          [eval](int value) { eval->prefill_tokens = value; });
  add_int(command, "--chunks", 1, 1 << 20, "most chunks (default 8)", [eval](int value) { eval->chunks = value; });
  add_json_option(command, options);
  return [&options, eval] {
    if (options.ctx_size > 0) eval->chunk_tokens = options.ctx_size;
    return run(options, *eval);
  };
}

}  // namespace qevict::app
