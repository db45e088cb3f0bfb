#include "eval_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "messages.h"
#include "terminal.h"

namespace qevict::app {
namespace {

std::vector<std::string> split(const std::string& list, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// "window=16" -> {"--kv-window", "16"}; "no-promotion" -> {"--no-promotion"}.
std::vector<std::string> flag_of(const CLI::App& command, const std::string& part) {
  const std::size_t equals = part.find('=');
  const std::string name = part.substr(0, equals);
  const std::string long_flag = "--kv-" + name;
  std::vector<std::string> result = {command.get_option_no_throw(long_flag) != nullptr ? long_flag : "--" + name};
  if (equals != std::string::npos) result.push_back(part.substr(equals + 1));
  return result;
}

// One item of --kv-method.
Result<CacheConfig> parse_cache(const Options& options, const std::string& item) {
  const std::vector<std::string> parts = split(item, ':');
  const std::string name = parts.empty() ? "" : parts.front();
  const Result<const Method*> method = require_method(name);
  if (!method) return method.error();
  Options own = options;
  if (!(*method)->compresses) own.cache = {};
  if (!(*method)->takes_budget()) {
    own.cache.budget = {};
    own.budget_text.clear();
  }
  own.cache.method = name;
  if (parts.size() > 1) {
    CLI::App command;
    add_cache_options(command, own);
    for (CLI::Option* option : command.get_options()) option->envname("");  // those are in `options` already
    std::vector<std::string> arguments;
    std::vector<std::string> seen;
    for (std::size_t i = parts.size(); i > 1; --i) {  // CLI11 takes them in reverse
      const std::vector<std::string> flag = flag_of(command, parts[i - 1]);
      const bool known = command.get_option_no_throw(flag.front()) != nullptr && flag.front() != "--help" &&
                         flag.front() != "--kv-method";
      if (!known) {
        return invalid("--kv-method {}: unknown option '{}'; take --kv-... ones without their --kv-", item,
                       parts[i - 1]);
      }
      if (std::ranges::find(seen, flag.front()) != seen.end()) {
        return invalid("--kv-method {}: {} is given more than once", item, flag.front());
      }
      seen.push_back(flag.front());
      arguments.insert(arguments.end(), flag.rbegin(), flag.rend());
    }
    try {
      command.parse(std::move(arguments));
    } catch (const CLI::ParseError& error) {
      return invalid("--kv-method {}: {}", item, error.what());
    }
  }
  if (const Result<void> checked = check_cache_options(own, **method); !checked) {
    return parts.size() > 1 ? invalid("--kv-method {}: {}", item, checked.error().message) : checked.error();
  }
  if ((*method)->takes_budget() && !own.cache.budget.ratio && !own.cache.budget.bytes) {
    own.cache.budget.ratio = kDefaultBudgetRatio;
  }
  return own.cache;
}

}  // namespace

Result<EvalCaches> parse_caches(const Options& options) {
  EvalCaches result;
  for (const std::string& item : split(options.cache.method, ',')) {
    Result<CacheConfig> cache = parse_cache(options, item);
    if (!cache) return cache.error();
    result.caches.push_back(*std::move(cache));
    if (std::ranges::find(result.methods, item) != result.methods.end()) {
      return invalid("--kv-method names {} twice", item);
    }
    result.methods.push_back(item);
  }
  if (result.caches.empty()) return invalid("--kv-method names no method");
  return result;
}

Result<EvalInput> load_eval_input(Options& options, const EvalOptions& eval, bool add_special) {
  if (eval.text.empty()) return invalid("--text FILE is missing: the text to measure on");
  Result<EvalCaches> caches = parse_caches(options);
  if (!caches) return caches.error();
  const Result<std::string> text = read_whole(eval.text);
  if (!text) return text.error();
  if (const Result<void> completed = complete(options); !completed) return completed.error();
  Result<Model> model = Model::load(options.model);
  if (!model) return model.error();
  Result<std::vector<Token>> tokens = model->tokenize(*text, add_special, false);
  if (!tokens) return tokens.error();
  return EvalInput{.model = *std::move(model),
                   .caches = std::move(caches->caches),
                   .methods = std::move(caches->methods),
                   .tokens = *std::move(tokens)};
}

std::vector<std::string> full_first(const EvalInput& input, std::vector<CacheConfig>& caches) {
  std::vector<std::string> labels = {"full"};
  for (std::size_t i = 0; i < input.caches.size(); ++i) {
    if (input.methods[i] == labels.front()) continue;
    caches.push_back(input.caches[i]);
    labels.push_back(input.methods[i]);
  }
  return labels;
}

EvalProgress EvalBar::progress() {
  return [this](double share) {
    bar_.update(static_cast<std::int64_t>(share * 10000), 10000);
    return !interrupted();
  };
}

int stopped_or_failed(const Error& error) {
  return error.kind == Error::Kind::interrupted ? fail_interrupted() : fail(error);
}

Json eval_json(const std::string& task, const Options& options, const EvalOptions& eval, const Model& model) {
  const Budget budget = options.cache.budget.ratio || options.cache.budget.bytes ? options.cache.budget
                                                                                 : Budget{.ratio = kDefaultBudgetRatio};
  return {{"task", task},
          {"version", version()},
          {"model", {{"path", model.info().path}, {"name", model.info().name}, {"weights", model.info().weights}}},
          {"text", eval.text},
          {"kv_budget", budget.to_string()}};
}

Json estimate_json(const Estimate& estimate) {
  return {{"value", estimate.value}, {"uncertainty", estimate.uncertainty}};
}

void add_kv_use(Json& json, const KvUse& kv) {
  json["kv_ratio_peak"] = kv.ratio_peak;
  json["kv_ratio_mean"] = kv.ratio_mean;
  json["kv_ratio_final"] = kv.ratio_final;
  json["kv_bytes_peak"] = kv.bytes_peak;
  json["kv_bytes_full"] = kv.bytes_full;
  json["kv_budget_bytes"] = kv.budget_bytes;
  json["kv_budget_effective"] = kv.budget_effective;
  json["promotions"] = kv.promotions;
  json["demotions"] = kv.demotions;
  json["evictions"] = kv.evictions;
}

Json settings_json(const std::vector<Setting>& settings) {
  Json json = Json::object();
  for (const Setting& setting : settings) json[setting.name] = setting.value;
  return json;
}

int report(const Options& options, const Json& json, const std::string& note, const std::string& table) {
  Output output;
  if (options.json) {
    output.write(to_text(json, 2) + "\n");
  } else {
    print_note(note);
    output.write(table);
  }
  for (const Json& row : json.value("results", Json::array())) print_raised(row["label"].get<std::string>(), row);
  const Result<void> written = output.status();
  return written ? kExitOk : fail(written.error());
}

}  // namespace qevict::app
