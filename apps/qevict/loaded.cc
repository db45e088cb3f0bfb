#include "loaded.h"

#include <fmt/format.h>

#include "messages.h"
#include "summary.h"

namespace qevict::app {

Result<std::unique_ptr<Loaded>> Loaded::open(Options& options, const GenerateOptions& generate) {
  Result<Model> model = Model::load(options.model, {.chat_template = options.chat_template});
  if (!model) return model.error();
  CacheConfig& cache = options.cache;
  if (cache.budget.ratio && !cache.budget_base) {  // named, so that the settings show what is in force
    cache.budget_base = generate.max_new >= 0 ? BudgetBase::request : BudgetBase::current;
  }
  // The session keeps a reference to the model, so it is made once the model has its place.
  auto loaded = std::unique_ptr<Loaded>(new Loaded(*std::move(model)));
  Result<Session> session = Session::create(loaded->model_, session_options(options));
  if (!session) return session.error();
  loaded->session_.emplace(*std::move(session));
  loaded->settings_ = effective_settings(options, generate, *loaded->session_);
  if (options.print_settings) {
    for (const Setting& setting : loaded->settings_) print_note(fmt::format("{:<16}{}", setting.name, setting.value));
  }
  if (options.json) loaded->memory_.start(options.model);
  return loaded;
}

}  // namespace qevict::app
