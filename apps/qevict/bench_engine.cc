#include "bench_engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "clock.h"
#include "messages.h"

namespace qevict::app {
namespace {

constexpr int kMatmulRuns = 9;

class QevictEngine final : public BenchEngine {
 public:
  QevictEngine(const Model& model, const Method& method, Session session)
      : kv_bytes_per_token_(model.info().kv_bytes_per_token), session_(std::move(session)) {
    label_ = {.engine = "qevict",
              .method = std::string(method.name),
              .kv_type = method.codec.empty()          ? "f16"
                         : method.quantizes_everything ? std::string(method.codec)
                                                       : fmt::format("f16+{}", method.codec),
              .flash_attn = "n/a"};
  }

  const EngineLabel& label() const override { return label_; }
  bool goes_back() const override { return false; }

  Result<std::optional<double>> fill(std::span<const Token> tokens, int max_new,
                                     const BenchProgress& progress) override {
    session_.reset();
    prefill_tokens_ = 0;
    if (tokens.empty()) return std::optional<double>();
    const Result<PromptTimes> read = read_prompt(tokens, max_new, progress);
    if (!read) return read.error();
    return std::optional<double>(read->prefill_ms);
  }

  Result<PromptTimes> read_prompt(std::span<const Token> prompt, int max_new, const BenchProgress& progress) override {
    prefill_tokens_ += static_cast<std::int64_t>(prompt.size());
    const auto start = Clock::now();
    const Result<void> read = session_.prefill(prompt, max_new, [&](std::int64_t done, std::int64_t total) {
      return progress(static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(total, 1)));
    });
    if (!read) return read.error();
    PromptTimes times = {.prefill_ms = ms_since(start)};
    likeliest_ = std::ranges::max_element(session_.logits()) - session_.logits().begin();
    times.ttft_ms = ms_since(start);
    return times;
  }

  Result<DecodeTimes> decode(std::span<const Token> steps, const BenchProgress& progress) override {
    DecodeTimes times;
    const CacheReport before = session_.report();
    std::int64_t routings = before.routings;
    for (const Token token : steps) {
      const auto start = Clock::now();
      const Result<void> stepped = session_.decode(token);
      times.step_ms.push_back(ms_since(start));
      if (!stepped) return stepped.error();
      const std::int64_t now = session_.report().routings;
      times.routed.push_back(now > routings);
      routings = now;
      if (!progress(static_cast<double>(times.step_ms.size()) / static_cast<double>(steps.size()))) {
        return Error{Error::Kind::interrupted, "interrupted"};
      }
    }
    const CacheReport after = session_.report();
    std::vector<double> matmuls;
    for (int i = 0; i < kMatmulRuns; ++i) {
      const Result<double> run = session_.matmul_ms();
      if (!run) return run.error();
      matmuls.push_back(*run);
    }
    std::ranges::nth_element(matmuls, matmuls.begin() + kMatmulRuns / 2);
    times.parts = StepParts{.attention_ms = after.attention_ms - before.attention_ms,
                            .routing_ms = after.routing_ms - before.routing_ms,
                            .migration_ms = after.migration_ms - before.migration_ms,
                            .matmul_ms = matmuls[kMatmulRuns / 2] * static_cast<double>(steps.size())};
    return times;
  }

  void add_fields(Json& row) const override {
    add_cache_fields(row, session_.report(), kv_bytes_per_token_, session_.n_tokens(), prefill_tokens_);
  }

 private:
  EngineLabel label_;
  std::size_t kv_bytes_per_token_;
  Session session_;
  std::int64_t prefill_tokens_ = 0;
  std::ptrdiff_t likeliest_ = 0;  // kept so that the search is not optimised away
};

}  // namespace

Result<std::unique_ptr<BenchEngine>> make_qevict_engine(const Model& model, const Options& options, int n_ctx) {
  const Result<const Method*> method = require_method(options.cache.method);
  if (!method) return method.error();
  SessionOptions session_as = session_options(options);
  session_as.n_ctx = n_ctx;
  Result<Session> session = Session::create(model, session_as);
  if (!session) return session.error();
  return std::unique_ptr<BenchEngine>(std::make_unique<QevictEngine>(model, **method, *std::move(session)));
}

}  // namespace qevict::app
