// qevict eval generation: where a greedy text parts from the full cache's, and whether it repeats itself more.
#include <fmt/format.h>

#include "eval/generation.h"
#include "eval_tasks.h"
#include "messages.h"

namespace qevict::app {
namespace {

constexpr int kPromptTokens = 512;
constexpr int kNewTokens = 1500;

Json result_json(const std::string& label, const GenerationResult& result) {
  const Agreement& agreement = result.agreement;
  Json json = {{"method", result.method},
               {"label", label},
               {"first_difference", agreement.first_difference},
               {"equal_first_64", agreement.equal_64},
               {"equal_first_256", agreement.equal_256},
               {"before_first_difference", agreement.before_first_difference},
               {"distinct_4grams", result.distinct_4grams},
               {"distinct_4grams_vs_full", result.distinct_4grams_vs_full},
               {"prefill_tps", result.prefill_tps},
               {"decode_tps", result.decode_tps}};
  add_kv_use(json, result.kv);
  json["text"] = result.text;
  json["settings"] = settings_json(result.settings);
  return json;
}

std::string table(const std::vector<std::string>& labels, const std::vector<GenerationResult>& results) {
  std::string text =
      "| method | KV ratio peak | mean | first difference | equal in 64 | in 256 | before it | distinct 4-grams | of "
      "full's | "
      "tokens/s |\n|---|---|---|---|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const GenerationResult& result = results[i];
    const Agreement& agreement = result.agreement;
    const bool equal = agreement.first_difference == static_cast<std::int64_t>(result.tokens.size());
    text += fmt::format("| {} | {:.4f} | {:.4f} | {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.1f} |\n",
                        labels[i], result.kv.ratio_peak, result.kv.ratio_mean,
                        equal ? "none" : fmt::format("{}", agreement.first_difference), agreement.equal_64,
                        agreement.equal_256, agreement.before_first_difference, result.distinct_4grams,
                        result.distinct_4grams_vs_full, result.decode_tps);
  }
  return text;
}

}  // namespace

int run_generation(Options& options, const EvalOptions& eval) {
  GenerationOptions generation{.prompt_tokens = eval.prefill_tokens.value_or(kPromptTokens),
                               .n_new = options.n_predict.value_or(kNewTokens),
                               .n_threads = options.threads};
  const Result<EvalInput> input = load_eval_input(options, eval, true);
  if (!input) return fail(input.error());
  const std::vector<std::string> labels = full_first(*input, generation.caches);
  EvalBar bar;
  const Result<std::vector<GenerationResult>> results =
      eval_generation(input->model, input->tokens, generation, bar.progress());
  bar.finish();
  if (!results) return stopped_or_failed(results.error());
  Json json = eval_json("generation", options, eval, input->model);
  json["prefill"] = generation.prompt_tokens;
  json["n_predict"] = generation.n_new;
  json["results"] = Json::array();
  for (std::size_t i = 0; i < results->size(); ++i) json["results"].push_back(result_json(labels[i], (*results)[i]));
  const ModelInfo& model = input->model.info();
  return report(options, json,
                fmt::format("{} ({}), {}: {} tokens read, {} generated greedily, end of text ignored; budget {}",
                            model.name, model.weights, eval.text, generation.prompt_tokens, generation.n_new,
                            json["kv_budget"].get<std::string>()),
                table(labels, *results));
}

}  // namespace qevict::app
