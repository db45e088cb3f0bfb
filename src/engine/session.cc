#include "qevict/session.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "engine/cache_attention.h"
#include "engine/model_parts.h"
#include "engine/session_options.h"

namespace qevict {

struct Session::State {
  const Model* model = nullptr;
  SessionOptions options;
  CacheSettings settings;
  std::shared_ptr<const NuqCalibration> calibration;
  std::unique_ptr<Runner> runner;
  std::optional<BudgetedCache> cache;
  std::optional<CacheAttention> attention;
  std::vector<float> logits;
  std::size_t workspace_peak = 0;
  bool broken = false;  // an error left the sequence half fed

  const ModelShape& shape() const { return model->parts().transformer->shape(); }
  void reset();
  Result<void> run_prompt(std::span<const Token> tokens, const Progress& progress);
  Result<void> run_layer(int layer, std::span<float> hidden, int n_tokens, PrefillLayer& prefill,
                         const std::vector<float>& weights, const Progress& progress);
  Result<void> check_usable(std::int64_t more) const;
  Result<void> check_memory(std::size_t n_prompt) const;
  void note_workspace(std::size_t bytes) { workspace_peak = std::max(workspace_peak, bytes); }
};

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Session::create(const Model& model, const SessionOptions& options) {
  auto state = std::make_unique<State>();
  state->model = &model;
  state->options = options;
  SessionOptions& chosen = state->options;
  if (Result<void> completed = complete(chosen, state->shape()); !completed) return completed.error();
  Result<CacheSettings> settings = CacheSettings::from(chosen.cache, chosen.n_ctx);
  if (!settings) return settings.error();
  state->settings = *settings;
  if (Result<void> fits = settings->check_shape(cache_shape_of(state->shape())); !fits) return fits.error();
  Result<std::shared_ptr<const NuqCalibration>> calibration = calibration_for(state->settings, model);
  if (!calibration) return calibration.error();
  state->calibration = *calibration;
  Result<std::unique_ptr<Runner>> runner =
      Runner::create(*model.parts().transformer, chosen.n_threads, std::min(chosen.chunk_tokens, chosen.n_ctx));
  if (!runner) return runner.error();
  state->runner = std::move(*runner);
  state->logits.resize(static_cast<std::size_t>(state->shape().n_vocab));
  state->reset();
  return Session(std::move(state));
}

void Session::State::reset() {
  attention.reset();
  cache.reset();
  const ModelShape& model_shape = shape();
  cache.emplace(cache_shape_of(model_shape), settings, model_shape.rope, options.n_ctx);
  connect(*cache, *runner, model_shape, calibration);
  attention.emplace(model_shape, *cache);
  workspace_peak = 0;
  broken = false;
}

Result<void> Session::State::check_usable(std::int64_t more) const {
  if (broken) return invalid("the session stopped in the middle of a prompt: reset it first");
  const std::int64_t after = cache->n_tokens() + more;
  if (after <= options.n_ctx) return {};
  if (cache->n_tokens() == 0) {
    return error_of(Error::Kind::too_long, "the prompt has {} tokens, but the context holds {}: shorten it{}", more,
                    options.n_ctx, options.n_ctx < shape().n_ctx_train ? " or raise the context size" : "");
  }
  return error_of(Error::Kind::too_long, "{} tokens are in the context and {} more do not fit: it holds {}",
                  cache->n_tokens(), more, options.n_ctx);
}

// Estimates what a prompt needs beyond the weights: its hidden states, one layer's keys and values with their packed
// copies, and the cache. Refused here rather than killed by the system later.
Result<void> Session::State::check_memory(std::size_t n_prompt) const {
  const ModelShape& model_shape = shape();
  const std::size_t row =
      static_cast<std::size_t>(model_shape.n_kv_heads) * static_cast<std::size_t>(model_shape.head_dim);
  const std::size_t tail = static_cast<std::size_t>(cache->tiers().heads().front().tail().n);
  const std::size_t per_token = sizeof(float) * (static_cast<std::size_t>(model_shape.n_embd) + 6 * row);
  const std::size_t needed = (tail + n_prompt) * per_token + cache->turn_bytes(static_cast<int>(n_prompt));
  const std::optional<std::size_t> available = available_memory_bytes();
  if (!available || needed <= *available) return {};
  return invalid(
      "a prompt of {} tokens needs about {} MiB of memory, but {} MiB are available: shorten it or lower the KV budget",
      n_prompt, needed >> 20, *available >> 20);
}

Result<void> Session::prefill(std::span<const Token> tokens, int max_new, const Progress& progress) {
  State& state = *state_;
  if (tokens.empty()) return invalid("the prompt is empty: give at least one token");
  if (Result<void> usable = state.check_usable(static_cast<std::int64_t>(tokens.size())); !usable) return usable;
  for (const Token token : tokens) {
    if (token < 0 || token >= state.shape().n_vocab) {
      return invalid("token {} is not in the vocabulary of {} tokens", token, state.shape().n_vocab);
    }
  }
  if (Result<void> begun = state.cache->begin_turn(static_cast<int>(tokens.size()), max_new); !begun) return begun;
  if (Result<void> fits = state.check_memory(tokens.size()); !fits) return fits;
  state.broken = true;
  if (Result<void> run = state.run_prompt(tokens, progress); !run) return run;
  state.broken = false;
  return {};
}

// Layer-major: the whole prompt through layer 0, which is then compressed, then layer 1, ...: the uncompressed keys and
// values of one layer exist at a time (qevict.md section 5).
Result<void> Session::State::run_prompt(std::span<const Token> tokens, const Progress& progress) {
  const ModelShape& model_shape = shape();
  const int n_tokens = static_cast<int>(tokens.size());
  const int tail = cache->tiers().heads().front().tail().n;
  const auto n_embd = static_cast<std::size_t>(model_shape.n_embd);
  const int chunk = std::min(options.chunk_tokens, options.n_ctx);
  std::vector<float> hidden(static_cast<std::size_t>(n_tokens) * n_embd);
  for (int begin = 0; begin < n_tokens; begin += chunk) {
    const auto rows = static_cast<std::size_t>(std::min(chunk, n_tokens - begin));
    const auto at = static_cast<std::size_t>(begin);
    if (Result<void> run =
            runner->embed(tokens.subspan(at, rows), std::span(hidden).subspan(at * n_embd, rows * n_embd));
        !run) {
      return run;
    }
  }

  const HeadShape head{.key_dim = model_shape.head_dim,
                       .value_dim = model_shape.head_dim,
                       .group = model_shape.n_heads / model_shape.n_kv_heads};
  PrefillLayer prefill(head, model_shape.n_kv_heads, tail + n_tokens, cache->score_power());
  attention->set_prefill(&prefill);
  const std::vector<float> weights = cache->row_weights(n_tokens);
  Result<void> result;
  for (int layer = 0; layer < model_shape.n_layers && result; ++layer) {
    result = run_layer(layer, hidden, n_tokens, prefill, weights, progress);
  }
  attention->set_prefill(nullptr);
  if (!result) return result;
  if (Result<void> ended = cache->end_turn(); !ended) return ended;
  note_workspace(prefill.workspace_bytes() + hidden.size() * sizeof(float) + runner->workspace_bytes());
  return runner->head(std::span<const float>(hidden).last(n_embd), logits);
}

Result<void> Session::State::run_layer(int layer, std::span<float> hidden, int n_tokens, PrefillLayer& prefill,
                                       const std::vector<float>& weights, const Progress& progress) {
  const ModelShape& model_shape = shape();
  const auto n_embd = static_cast<std::size_t>(model_shape.n_embd);
  const int chunk = std::min(options.chunk_tokens, options.n_ctx);
  const auto position = static_cast<std::int32_t>(cache->n_tokens());
  attention->begin_layer(layer);
  prefill.begin(cache->past(layer), cache->follows_attention(), weights);
  for (int h = 0; h < model_shape.n_kv_heads; ++h) {
    const TokenView tail = cache->tiers().head(layer, h).tail();
    prefill.preload(h, tail.keys, tail.values, tail.n);
  }
  const bool last_layer = layer + 1 == model_shape.n_layers;
  for (int begin = 0; begin < n_tokens; begin += chunk) {
    const int rows = std::min(chunk, n_tokens - begin);
    const bool last_row_only = last_layer && begin + rows == n_tokens;
    if (last_row_only && !cache->follows_attention() && !cache->keeps_queries()) {
      prefill.next_chunk_last_row_only(rows);
    } else {
      prefill.next_chunk(rows);
    }
    const auto at = static_cast<std::size_t>(begin) * n_embd;
    Result<void> run = runner->layer(layer, hidden.subspan(at, static_cast<std::size_t>(rows) * n_embd),
                                     position + begin, last_row_only, *attention);
    if (!run) return run;
    if (Result<void> attended = attention->take_error(); !attended) return attended;
    if (progress && !progress(static_cast<std::int64_t>(layer) * n_tokens + begin + rows,
                              static_cast<std::int64_t>(model_shape.n_layers) * n_tokens)) {
      return error_of(Error::Kind::interrupted, "stopped while reading the prompt");
    }
  }
  if (Result<void> ended = cache->end_layer(layer, n_tokens, prefill); !ended) return ended;
  cache->note_prefill(prefill.kv_bytes());
  return {};
}

Result<void> Session::decode(Token token) {
  State& state = *state_;
  if (Result<void> usable = state.check_usable(1); !usable) return usable;
  if (state.cache->n_tokens() == 0) return invalid("decode needs a prompt: call prefill first");
  if (token < 0 || token >= state.shape().n_vocab) {
    return invalid("token {} is not in the vocabulary of {} tokens", token, state.shape().n_vocab);
  }
  if (Result<void> begun = state.cache->begin_step(); !begun) {
    state.broken = begun.error().kind == Error::Kind::internal;  // else nothing has changed
    return begun;
  }
  state.broken = true;
  state.attention->begin_step();
  const auto position = static_cast<std::int32_t>(state.cache->n_tokens());
  if (Result<void> run = state.runner->decode(token, position, *state.attention, state.logits); !run) return run;
  if (Result<void> attended = state.attention->take_error(); !attended) return attended;
  if (Result<void> ended = state.cache->end_step(); !ended) return ended;
  state.note_workspace(state.attention->workspace_bytes() + state.runner->workspace_bytes());
  state.broken = false;
  return {};
}

std::span<float> Session::logits() { return state_->logits; }
int Session::n_tokens() const { return static_cast<int>(state_->cache->n_tokens()); }
int Session::n_ctx() const { return state_->options.n_ctx; }

CacheReport Session::report() const {
  CacheReport report = state_->cache->report();
  report.workspace_peak = state_->workspace_peak;
  report.attention_ms = state_->attention->attention_ms();
  return report;
}

std::vector<Setting> Session::settings() const {
  return settings_of(state_->settings, state_->options, state_->calibration);
}

Result<double> Session::matmul_ms() {
  const Clock::time_point start = Clock::now();
  if (Result<void> run = state_->runner->decode_matmuls(); !run) return run.error();
  return ms_since(start);
}

void Session::reset() { state_->reset(); }

}  // namespace qevict
