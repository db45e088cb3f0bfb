#include "qevict/generate.h"

#include "base/clock.h"
#include "engine/model_parts.h"

namespace qevict {
namespace {

std::vector<Token> end_tokens(const Model& model) {
  std::vector<Token> result;
  for (Token token = 0; token < model.info().n_vocab; ++token) {
    if (model.ends_generation(token)) result.push_back(token);
  }
  return result;
}

}  // namespace

Result<Generation> generate(const Model& model, Session& session, std::span<const Token> prompt,
                            const GenerateOptions& options, const GenerateCallbacks& callbacks) {
  if (options.max_new < -1)
    return Error{Error::Kind::invalid,
                 "the number of new tokens must be -1 or more, got " + std::to_string(options.max_new)};
  Result<std::unique_ptr<Sampler>> sampler = Sampler::create(options.sampling);
  if (!sampler) return sampler.error();
  if (options.ignore_eos) (*sampler)->ban(end_tokens(model));
  for (const Token token : prompt) (*sampler)->accept(token);

  Generation result;
  result.prompt_tokens = static_cast<int>(prompt.size());
  const Clock::time_point start = Clock::now();
  if (Result<void> fed = session.prefill(prompt, options.max_new, callbacks.progress); !fed) {
    if (fed.error().kind != Error::Kind::interrupted) return fed.error();
    result.prefill_ms = ms_since(start);
    result.stop = StopReason::interrupted;
    return result;
  }
  result.prefill_ms = ms_since(start);

  Utf8Stream stream;
  const auto emit = [&](const std::string& text) {
    result.text += text;
    return text.empty() || !callbacks.text || callbacks.text(text);
  };
  Clock::time_point first = Clock::now();
  while (options.max_new < 0 || static_cast<int>(result.tokens.size()) < options.max_new) {
    if (callbacks.stop && callbacks.stop()) {
      result.stop = StopReason::interrupted;
      break;
    }
    if (!result.tokens.empty()) {
      if (session.n_tokens() == session.n_ctx()) {
        result.stop = StopReason::context_full;
        break;
      }
      if (Result<void> fed = session.decode(result.tokens.back()); !fed) return fed.error();
    }
    const Token token = (*sampler)->sample(session.logits());
    result.tokens.push_back(token);
    if (result.tokens.size() == 1) {
      result.ttft_ms = ms_since(start);
      first = Clock::now();
    }
    result.decode_ms = ms_since(first);
    if (model.ends_generation(token)) {
      result.stop = StopReason::end_of_text;
      break;
    }
    if (!emit(stream.push(model.piece(token)))) {
      result.stop = StopReason::interrupted;
      break;
    }
  }
  emit(stream.flush());
  return result;
}

}  // namespace qevict
