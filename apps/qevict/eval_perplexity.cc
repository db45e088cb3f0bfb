// qevict eval perplexity: divergence from the full cache while decoding (evaluation.md 4.2).
#include <fmt/format.h>

#include "eval/perplexity.h"
#include "eval_tasks.h"
#include "messages.h"

namespace qevict::app {
namespace {

constexpr int kChunkTokens = 2304;
constexpr int kChunks = 8;

Json result_json(const std::string& label, const PerplexityResult& result) {
  const DivergenceSummary& d = result.divergence;
  Json json = {{"method", result.method},
               {"label", label},
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
               {"cache_ms_per_token", result.cache_ms_per_token}};
  add_kv_use(json, result.kv);
  Json bins = Json::array();
  for (const DecodeBin& bin : result.bins) {
    bins.push_back(
        {{"first_step", bin.first_step}, {"tokens", bin.n_tokens}, {"kld_mean", bin.kld}, {"same_top", bin.same_top}});
  }
  json["by_decode_step"] = bins;
  json["settings"] = settings_json(result.settings);
  return json;
}

std::string table(const std::vector<std::string>& labels, const std::vector<PerplexityResult>& results) {
  std::string text = fmt::format("| method | KV ratio peak | mean | mean KL | 99 % | same top | ln(PPL/full) |");
  for (const DecodeBin& bin : results.front().bins) text += fmt::format(" KL from step {} |", bin.first_step);
  text += "\n|---|---|---|---|---|---|---|";
  for (std::size_t i = 0; i < results.front().bins.size(); ++i) text += "---|";
  text += "\n";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const PerplexityResult& result = results[i];
    const DivergenceSummary& d = result.divergence;
    text +=
        fmt::format("| {} | {:.4f} | {:.4f} | {:.5f} ± {:.5f} | {:.4f} | {:.3f} ± {:.3f} | {:+.4f} ± {:.4f} |",
                    labels[i], result.kv.ratio_peak, result.kv.ratio_mean, d.kld.value, d.kld.uncertainty, d.kld_p99,
                    d.same_top.value, d.same_top.uncertainty, d.ln_ppl_ratio.value, d.ln_ppl_ratio.uncertainty);
    for (const DecodeBin& bin : result.bins) text += fmt::format(" {:.5f} |", bin.kld);
    text += "\n";
  }
  return text;
}

}  // namespace

int run_perplexity(Options& options, const EvalOptions& eval) {
  const int chunk_tokens = options.ctx_size > 0 ? options.ctx_size : kChunkTokens;
  const int prefill_tokens = eval.prefill_tokens.value_or(chunk_tokens * 8 / 9);
  if (prefill_tokens >= chunk_tokens - 1) {
    return fail(invalid("--prefill {} leaves nothing of --ctx-size {} to decode", prefill_tokens, chunk_tokens));
  }
  const Result<EvalInput> input = load_eval_input(options, eval, true);
  if (!input) return fail(input.error());
  EvalBar bar;
  const Result<std::vector<PerplexityResult>> results = eval_perplexity(input->model, input->tokens,
                                                                        {.caches = input->caches,
                                                                         .chunk_tokens = chunk_tokens,
                                                                         .prefill_tokens = prefill_tokens,
                                                                         .max_chunks = eval.chunks.value_or(kChunks),
                                                                         .n_threads = options.threads},
                                                                        bar.progress());
  bar.finish();
  if (!results) return stopped_or_failed(results.error());
  Json json = eval_json("perplexity", options, eval, input->model);
  json["ctx_size"] = chunk_tokens;
  json["prefill"] = prefill_tokens;
  json["results"] = Json::array();
  for (std::size_t i = 0; i < results->size(); ++i) {
    json["results"].push_back(result_json(input->methods[i], (*results)[i]));
  }
  const ModelInfo& model = input->model.info();
  return report(
      options, json,
      fmt::format("{} ({}), {}: chunks of {} tokens, {} read, the rest decoded; budget {}", model.name, model.weights,
                  eval.text, chunk_tokens, prefill_tokens, json["kv_budget"].get<std::string>()),
      table(input->methods, *results));
}

}  // namespace qevict::app
