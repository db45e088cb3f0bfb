#include "bench_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "messages.h"
#include "terminal.h"

namespace qevict::app {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

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

  Result<PromptTimes> read_prompt(std::span<const Token> fill, std::span<const Token> prompt,
                                  const BenchProgress& progress) override {
    session_.reset();
    const auto total = static_cast<double>(fill.size() + prompt.size());
    prefill_tokens_ = static_cast<std::int64_t>(fill.size() + prompt.size());
    if (!fill.empty()) {
      // The budget is that of the whole request: what follows the fill counts as new tokens.
      const Result<void> filled = session_.prefill(fill, static_cast<int>(prompt.size()),
                                                   scaled(progress, 0, static_cast<double>(fill.size()) / total));
      if (!filled) return filled.error();
    }
    const auto start = Clock::now();
    const Result<void> read =
        session_.prefill(prompt, 0, scaled(progress, static_cast<double>(fill.size()) / total, 1));
    if (!read) return read.error();
    PromptTimes times = {.prefill_ms = ms_since(start)};
    likeliest_ = std::ranges::max_element(session_.logits()) - session_.logits().begin();
    times.ttft_ms = ms_since(start);
    return times;
  }

  Result<DecodeTimes> decode(std::span<const Token> fill, std::span<const Token> steps,
                             const BenchProgress& progress) override {
    session_.reset();
    prefill_tokens_ = static_cast<std::int64_t>(fill.size());
    DecodeTimes times;
    auto start = Clock::now();
    const Result<void> filled = session_.prefill(fill, static_cast<int>(steps.size()), scaled(progress, 0, 1));
    if (!filled) return filled.error();
    times.fill_ms = ms_since(start);
    start = Clock::now();
    for (const Token token : steps) {
      if (const Result<void> stepped = session_.decode(token); !stepped) return stepped.error();
      if (interrupted()) return Error{Error::Kind::interrupted, "interrupted"};
    }
    times.decode_ms = ms_since(start);
    return times;
  }

  void add_fields(Json& row) const override {
    add_cache_fields(row, session_.report(), kv_bytes_per_token_, session_.n_tokens(), prefill_tokens_);
  }

 private:
  static Session::Progress scaled(const BenchProgress& progress, double from, double to) {
    return [&progress, from, to](std::int64_t done, std::int64_t total) {
      return progress(from +
                      (to - from) * static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(total, 1)));
    };
  }

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
