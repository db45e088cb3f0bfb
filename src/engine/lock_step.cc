#include "qevict/lock_step.h"

#include <algorithm>
#include <list>
#include <optional>

#include "base/check.h"
#include "engine/cache_attention.h"
#include "engine/model_parts.h"
#include "engine/session_options.h"

namespace qevict {
namespace {

struct One {
  CacheSettings settings;
  std::shared_ptr<const NuqCalibration> calibration;
  std::optional<BudgetedCache> cache;
  std::optional<CacheAttention> attention;
  std::size_t prompt = 0;  // of SharedPrompt, whose column sums it takes
};

// A prompt's attention for all caches: once for each kind of column sums.
class SharedPrompt final : public Attention {
 public:
  struct Sums {
    bool wanted = false;
    int power = 1;
    std::vector<float> row_weights;
    friend bool operator==(const Sums&, const Sums&) = default;
  };

  SharedPrompt(const ModelShape& model, std::list<One>& caches, int n_tokens) : model_(&model), caches_(&caches) {
    const HeadShape shape{
        .key_dim = model.head_dim, .value_dim = model.head_dim, .group = model.n_heads / model.n_kv_heads};
    for (One& one : caches) {
      Sums sums;
      if (one.cache->follows_attention()) {
        sums = {.wanted = true, .power = one.cache->score_power(), .row_weights = one.cache->row_weights(n_tokens)};
      }
      one.prompt = place_of(std::move(sums));
    }
    for (const Sums& sums : sums_)
      layers_.push_back(std::make_unique<PrefillLayer>(shape, model.n_kv_heads, n_tokens, sums.power));
  }

  void begin(int layer) {
    for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i]->begin({}, sums_[i].wanted, sums_[i].row_weights);
    for (One& one : *caches_) one.attention->begin_layer(layer);
    first_ = 0;
  }
  void next_chunk(int n_rows) {
    for (const auto& layer : layers_) layer->next_chunk(n_rows);
    unused_.resize(static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(model_->n_heads * model_->head_dim));
  }
  void end_chunk(int n_rows) { first_ += n_rows; }
  const PrefillLayer& layer_of(const One& one) const { return *layers_[one.prompt]; }

  void decode_partial(int, const float*, const float*, const float*, int, int) noexcept override {}
  void decode_merge(int, float*, int, int) noexcept override {}
  void prefill_store(int, const float* k, const float* v, int n_tokens, int thread, int n_threads) noexcept override {
    for (const auto& layer : layers_) layer->store(k, v, n_tokens, thread, n_threads);
  }
  void prefill_attend(int layer, const float* q, int n_tokens, float* out, int thread,
                      int n_threads) noexcept override {
    for (One& one : *caches_) one.attention->note_queries(layer, q, n_tokens, first_, thread, n_threads);
    for (std::size_t i = 0; i < layers_.size(); ++i)
      layers_[i]->attend(q, n_tokens, model_->attention_scale, i == 0 ? out : unused_.data(), thread, n_threads);
  }

 private:
  // Caches that want no sums share whatever there is.
  std::size_t place_of(Sums sums) {
    const auto same = std::ranges::find_if(sums_, [&](const Sums& other) { return !sums.wanted || other == sums; });
    if (same == sums_.end()) {
      if (sums.wanted && sums_.size() == 1 && !sums_.front().wanted) {
        sums_.front() = std::move(sums);
        return 0;
      }
      sums_.push_back(std::move(sums));
      return sums_.size() - 1;
    }
    return static_cast<std::size_t>(same - sums_.begin());
  }

  const ModelShape* model_;
  std::list<One>* caches_;
  std::vector<Sums> sums_;
  std::vector<std::unique_ptr<PrefillLayer>> layers_;  // one for each
  std::vector<float> unused_;                          // outputs but the first's, which are all alike
  std::int64_t first_ = 0;                             // position of the chunk's first row
};

// One row a cache, all at one position. A thread takes a cache's row from beginning to end.
class RowsOfCaches final : public Attention {
 public:
  RowsOfCaches(const ModelShape& model, std::list<One>& caches) : model_(&model) {
    for (One& one : caches) attentions_.push_back(&*one.attention);
  }
  void decode_partial(int, const float*, const float*, const float*, int, int) noexcept override {}
  void decode_merge(int, float*, int, int) noexcept override {}
  void prefill_store(int, const float* k, const float* v, int, int thread, int) noexcept override {
    if (thread != 0) return;
    k_ = k;
    v_ = v;
  }
  void prefill_attend(int layer, const float* q, int, float* out, int thread, int n_threads) noexcept override {
    const auto q_row = static_cast<std::size_t>(model_->n_heads * model_->head_dim);
    const auto kv_row = static_cast<std::size_t>(model_->n_kv_heads * model_->head_dim);
    for (auto i = static_cast<std::size_t>(thread); i < attentions_.size(); i += static_cast<std::size_t>(n_threads)) {
      attentions_[i]->decode_partial(layer, q + i * q_row, k_ + i * kv_row, v_ + i * kv_row, 0, 1);
      attentions_[i]->decode_merge(layer, out + i * q_row, 0, 1);
    }
  }

 private:
  const ModelShape* model_;
  std::vector<CacheAttention*> attentions_;
  const float* k_ = nullptr;
  const float* v_ = nullptr;
};

Error named(const One& one, Error error) {
  error.message = fmt::format("{}: {}", one.settings.method->name, error.message);
  return error;
}

}  // namespace

struct LockStep::State {
  const Model* model = nullptr;
  SessionOptions options;  // of every cache, but for the cache
  std::list<One> caches;   // places that attention may point to
  std::unique_ptr<Runner> runner;
  std::vector<float> logits;  // [caches][n_vocab]
  bool broken = false;

  const ModelShape& shape() const { return model->parts().transformer->shape(); }
  void reset();
  Result<void> run_prompt(std::span<const Token> tokens, const Session::Progress& progress);
  Result<void> run_step(Token token);
  Result<void> take_errors();
};

LockStep::LockStep(std::unique_ptr<State> state) : state_(std::move(state)) {}
LockStep::LockStep(LockStep&&) noexcept = default;
LockStep& LockStep::operator=(LockStep&&) noexcept = default;
LockStep::~LockStep() = default;

Result<LockStep> LockStep::create(const Model& model, const LockStepOptions& options) {
  auto state = std::make_unique<State>();
  state->model = &model;
  state->options = {
      .cache = {}, .n_threads = options.n_threads, .n_ctx = options.n_ctx, .chunk_tokens = options.chunk_tokens};
  if (options.caches.empty()) return invalid("give at least one cache to compare");
  if (Result<void> completed = complete(state->options, state->shape()); !completed) return completed.error();
  for (const CacheConfig& cache : options.caches) {
    Result<CacheSettings> settings = CacheSettings::from(cache, state->options.n_ctx);
    if (!settings) return settings.error();
    if (Result<void> fits = settings->check_shape(cache_shape_of(state->shape())); !fits) return fits.error();
    Result<std::shared_ptr<const NuqCalibration>> calibration = calibration_for(*settings, model);
    if (!calibration) return calibration.error();
    One& one = state->caches.emplace_back();
    one.settings = *std::move(settings);
    one.calibration = *calibration;
  }
  const int rows =
      std::max(std::min(state->options.chunk_tokens, state->options.n_ctx), static_cast<int>(options.caches.size()));
  Result<std::unique_ptr<Runner>> runner = Runner::create(*model.parts().transformer, state->options.n_threads, rows);
  if (!runner) return runner.error();
  state->runner = std::move(*runner);
  state->logits.resize(options.caches.size() * static_cast<std::size_t>(state->shape().n_vocab));
  state->reset();
  return LockStep(std::move(state));
}

void LockStep::State::reset() {
  for (One& one : caches) {
    one.attention.reset();
    one.cache.emplace(cache_shape_of(shape()), one.settings, shape().rope, options.n_ctx);
    connect(*one.cache, *runner, shape(), one.calibration);
    one.attention.emplace(shape(), *one.cache);
  }
  broken = false;
}

Result<void> LockStep::State::take_errors() {
  for (One& one : caches) {
    if (Result<void> attended = one.attention->take_error(); !attended) return named(one, attended.error());
  }
  return {};
}

Result<void> LockStep::prefill(std::span<const Token> tokens, int max_new, const Session::Progress& progress) {
  State& state = *state_;
  if (state.broken || n_tokens() > 0) return invalid("a lock-step reads one prompt: reset it first");
  if (tokens.empty()) return invalid("the prompt is empty: give at least one token");
  if (tokens.size() > static_cast<std::size_t>(state.options.n_ctx)) {
    return error_of(Error::Kind::too_long, "the prompt has {} tokens, but the context holds {}", tokens.size(),
                    state.options.n_ctx);
  }
  for (One& one : state.caches) {
    if (Result<void> begun = one.cache->begin_turn(static_cast<int>(tokens.size()), max_new); !begun)
      return named(one, begun.error());
  }
  state.broken = true;
  if (Result<void> run = state.run_prompt(tokens, progress); !run) return run;
  state.broken = false;
  return {};
}

Result<void> LockStep::State::run_prompt(std::span<const Token> tokens, const Session::Progress& progress) {
  const int n_tokens = static_cast<int>(tokens.size());
  const auto n_embd = static_cast<std::size_t>(shape().n_embd);
  const int chunk = std::min(options.chunk_tokens, options.n_ctx);
  std::vector<float> hidden(tokens.size() * n_embd);
  if (Result<void> run = runner->embed(tokens, hidden); !run) return run;
  SharedPrompt prompt(shape(), caches, n_tokens);
  for (int layer = 0; layer < shape().n_layers; ++layer) {
    prompt.begin(layer);
    for (int begin = 0; begin < n_tokens; begin += chunk) {
      const int rows = std::min(chunk, n_tokens - begin);
      prompt.next_chunk(rows);
      const auto part =
          std::span(hidden).subspan(static_cast<std::size_t>(begin) * n_embd, static_cast<std::size_t>(rows) * n_embd);
      if (Result<void> run = runner->layer(layer, part, begin, false, prompt); !run) return run;
      if (Result<void> attended = take_errors(); !attended) return attended;
      prompt.end_chunk(rows);
      if (progress && !progress(static_cast<std::int64_t>(layer) * n_tokens + begin + rows,
                                static_cast<std::int64_t>(shape().n_layers) * n_tokens)) {
        return error_of(Error::Kind::interrupted, "stopped while reading the prompt");
      }
    }
    for (One& one : caches) {
      if (Result<void> ended = one.cache->end_layer(layer, n_tokens, prompt.layer_of(one)); !ended)
        return named(one, ended.error());
      one.cache->note_prefill(prompt.layer_of(one).kv_bytes());
    }
  }
  for (One& one : caches) {
    if (Result<void> ended = one.cache->end_turn(); !ended) return named(one, ended.error());
  }
  const auto n_vocab = static_cast<std::size_t>(shape().n_vocab);
  const std::span<float> first = std::span(logits).first(n_vocab);
  if (Result<void> run = runner->head(std::span<const float>(hidden).last(n_embd), first); !run) return run;
  for (std::size_t i = 1; i < caches.size(); ++i)
    std::ranges::copy(first, logits.begin() + static_cast<std::ptrdiff_t>(i * n_vocab));
  return {};
}

Result<void> LockStep::decode(Token token) {
  State& state = *state_;
  if (state.broken) return invalid("the lock-step stopped in the middle: reset it first");
  if (n_tokens() == 0) return invalid("decode needs a prompt: call prefill first");
  if (n_tokens() >= state.options.n_ctx) {
    return error_of(Error::Kind::too_long, "{} tokens are in the context and 1 more does not fit: it holds {}",
                    n_tokens(), state.options.n_ctx);
  }
  if (token < 0 || token >= state.shape().n_vocab) {
    return invalid("token {} is not in the vocabulary of {} tokens", token, state.shape().n_vocab);
  }
  state.broken = true;
  if (Result<void> run = state.run_step(token); !run) return run;
  state.broken = false;
  return {};
}

Result<void> LockStep::State::run_step(Token token) {
  const auto position = static_cast<std::int32_t>(caches.front().cache->n_tokens());
  for (One& one : caches) {
    if (Result<void> begun = one.cache->begin_step(); !begun) return named(one, begun.error());
    one.attention->begin_step();
  }
  const std::vector<Token> tokens(caches.size(), token);
  std::vector<float> hidden(caches.size() * static_cast<std::size_t>(shape().n_embd));
  if (Result<void> run = runner->embed(tokens, hidden); !run) return run;
  RowsOfCaches rows(shape(), caches);
  for (int layer = 0; layer < shape().n_layers; ++layer) {
    if (Result<void> run = runner->layer_of_sequences(layer, hidden, position, rows); !run) return run;
    if (Result<void> attended = take_errors(); !attended) return attended;
  }
  for (One& one : caches) {
    if (Result<void> ended = one.cache->end_step(); !ended) return named(one, ended.error());
  }
  return runner->head(hidden, logits);
}

std::size_t LockStep::size() const { return state_->caches.size(); }

std::span<const float> LockStep::logits(std::size_t cache) const {
  const auto n_vocab = static_cast<std::size_t>(state_->shape().n_vocab);
  return std::span(state_->logits).subspan(cache * n_vocab, n_vocab);
}

int LockStep::n_tokens() const { return static_cast<int>(state_->caches.front().cache->n_tokens()); }

CacheReport LockStep::report(std::size_t cache) const {
  const One& one = *std::next(state_->caches.begin(), static_cast<std::ptrdiff_t>(cache));
  CacheReport report = one.cache->report();
  report.attention_ms = one.attention->attention_ms();
  return report;
}

std::vector<Setting> LockStep::settings(std::size_t cache) const {
  const One& one = *std::next(state_->caches.begin(), static_cast<std::ptrdiff_t>(cache));
  return settings_of(one.settings, state_->options, one.calibration);
}

void LockStep::reset() { state_->reset(); }

}  // namespace qevict
