// qevict eval f32-copy: the model file that divergence is measured on.
#include "eval/f32_copy.h"
#include "eval_tasks.h"
#include "messages.h"

namespace qevict::app {

int run_f32_copy(Options& options, const EvalOptions& eval) {
  if (eval.out.empty()) return fail(invalid("--out FILE is missing: the f32 copy to write"));
  if (const Result<void> completed = complete(options); !completed) return fail(completed.error());
  // Refuses, in our words, what is not a model.
  if (const Result<Model> model = Model::load(options.model); !model) return fail(model.error());
  const Result<void> written = make_f32_copy(options.model, eval.out);
  return written ? kExitOk : fail(written.error());
}

}  // namespace qevict::app
