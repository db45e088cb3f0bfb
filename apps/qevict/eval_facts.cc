// qevict eval facts: what a compressed cache still knows of facts that were not asked for when it was compressed.
#include <fmt/format.h>

#include "eval/facts.h"
#include "eval_tasks.h"
#include "messages.h"

namespace qevict::app {
namespace {

constexpr int kPromptTokens = 2048;

Json result_json(const std::string& label, const FactsResult& result) {
  Json json = {{"method", result.method},
               {"label", label},
               {"facts", result.n_facts},
               {"digit_tokens", result.n_digit_tokens},
               {"digits_teacher_forced", result.digits.value},
               {"digits_teacher_forced_uncertainty", result.digits.uncertainty},
               {"digits_greedy", result.leading.value},
               {"digits_greedy_uncertainty", result.leading.uncertainty},
               {"facts_greedy", result.whole.value},
               {"facts_greedy_uncertainty", result.whole.uncertainty},
               {"digit_nll", result.nll.value},
               {"digit_nll_uncertainty", result.nll.uncertainty},
               {"digits_minus_full", result.digits_minus_full.value},
               {"digits_minus_full_uncertainty", result.digits_minus_full.uncertainty},
               {"digits_teacher_forced_by_quarter", result.digits_parts}};
  add_kv_use(json, result.kv);
  json["settings"] = settings_json(result.settings);
  return json;
}

std::string table(const std::vector<std::string>& labels, const std::vector<FactsResult>& results) {
  std::string text =
      "| method | KV ratio peak | mean | final | digits, teacher-forced | minus full | digits, greedy | whole facts | "
      "by "
      "quarter of the prompt |\n|---|---|---|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const FactsResult& result = results[i];
    text += fmt::format(
        "| {} | {:.4f} | {:.4f} | {:.4f} | {:.3f} ± {:.3f} | {:+.3f} ± {:.3f} | {:.3f} ± {:.3f} | {:.3f} ± {:.3f} | "
        "{:.2f} "
        "|\n",
        labels[i], result.kv.ratio_peak, result.kv.ratio_mean, result.kv.ratio_final, result.digits.value,
        result.digits.uncertainty, result.digits_minus_full.value, result.digits_minus_full.uncertainty,
        result.leading.value, result.leading.uncertainty, result.whole.value, result.whole.uncertainty,
        fmt::join(result.digits_parts, " "));
  }
  return text;
}

}  // namespace

int run_facts(Options& options, const EvalOptions& eval) {
  FactsOptions facts{.prompt_tokens = options.ctx_size > 0 ? options.ctx_size : kPromptTokens,
                     .seed = static_cast<std::uint64_t>(eval.seed),
                     .n_threads = options.threads};
  if (eval.facts) facts.n_facts = *eval.facts;
  if (eval.samples) facts.n_samples = *eval.samples;
  if (eval.questions_per_reading) facts.questions_per_reading = *eval.questions_per_reading;
  const Result<EvalInput> input = load_eval_input(options, eval, false);
  if (!input) return fail(input.error());
  const std::vector<std::string> labels = full_first(*input, facts.caches);
  EvalBar bar;
  const Result<std::vector<FactsResult>> results = eval_facts(input->model, input->tokens, facts, bar.progress());
  bar.finish();
  if (!results) return stopped_or_failed(results.error());
  Json json = eval_json("facts", options, eval, input->model);
  json["ctx_size"] = facts.prompt_tokens;
  json["facts"] = facts.n_facts;
  json["samples"] = facts.n_samples;
  json["questions_per_reading"] = facts.questions_per_reading;
  json["seed"] = eval.seed;
  json["results"] = Json::array();
  for (std::size_t i = 0; i < results->size(); ++i) json["results"].push_back(result_json(labels[i], (*results)[i]));
  const ModelInfo& model = input->model.info();
  return report(
      options, json,
      fmt::format("{} ({}), {}: {} documents of {} tokens with {} facts each, {} asked for after each reading; "
                  "budget {}",
                  model.name, model.weights, eval.text, facts.n_samples, facts.prompt_tokens, facts.n_facts,
                  facts.questions_per_reading, json["kv_budget"].get<std::string>()),
      table(labels, *results));
}

}  // namespace qevict::app
