#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "llama-cpp.h"
#include "model/text.h"

namespace qevict {
namespace {

constexpr float kGreedyBelow = 1e-6f;  // smaller temperatures would overflow the logits they divide

Result<void> validate(const SamplerOptions& o) {
  // Written so that NaN fails.
  if (!(o.temperature >= 0.0f && std::isfinite(o.temperature)))
    return invalid("temperature must be 0 or more, got {}", o.temperature);
  if (o.top_k < 0) return invalid("top_k must be 0 (off) or more, got {}", o.top_k);
  if (!(o.top_p > 0.0f && o.top_p <= 1.0f)) return invalid("top_p must be above 0 and at most 1, got {}", o.top_p);
  if (!(o.min_p >= 0.0f && o.min_p <= 1.0f)) return invalid("min_p must be 0 to 1, got {}", o.min_p);
  if (!(o.repeat_penalty > 0.0f && std::isfinite(o.repeat_penalty) && std::isfinite(1.0f / o.repeat_penalty)))
    return invalid("repeat_penalty must be above 0, got {}", o.repeat_penalty);
  if (o.repeat_last_n < 0) return invalid("repeat_last_n must be 0 or more, got {}", o.repeat_last_n);
  if (o.seed == LLAMA_DEFAULT_SEED)
    return invalid("seed must be below {}, which llama.cpp takes for a random one", LLAMA_DEFAULT_SEED);
  return {};
}

class LlamaSampler final : public Sampler {
 public:
  explicit LlamaSampler(const SamplerOptions& o) : chain_(llama_sampler_chain_init({/*.no_perf=*/true})) {
    if (o.repeat_penalty != 1.0f && o.repeat_last_n > 0)
      add(llama_sampler_init_penalties(std::numeric_limits<std::int32_t>::max(), o.repeat_last_n, o.repeat_penalty,
                                       /*penalty_freq=*/0.0f, /*penalty_present=*/0.0f));
    if (o.temperature < kGreedyBelow) {
      add(llama_sampler_init_greedy());
      return;
    }
    add(llama_sampler_init_top_k(o.top_k));
    add(llama_sampler_init_top_p(o.top_p, /*min_keep=*/1));
    add(llama_sampler_init_min_p(o.min_p, /*min_keep=*/1));
    add(llama_sampler_init_temp(o.temperature));
    add(llama_sampler_init_dist(o.seed));
  }

  std::int32_t sample(std::span<float> logits) override {
    QEVICT_CHECK(!logits.empty(), "a model has a vocabulary");
    for (const std::int32_t token : banned_)
      if (static_cast<std::size_t>(token) < logits.size())
        logits[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();
    candidates_.resize(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
      candidates_[i] = {static_cast<llama_token>(i), logits[i], /*p=*/0.0f};
    llama_token_data_array array = {candidates_.data(), candidates_.size(), /*selected=*/-1, /*sorted=*/false};
    llama_sampler_apply(chain_.get(), &array);
    QEVICT_CHECK(array.selected >= 0 && static_cast<std::size_t>(array.selected) < array.size, "the chain chooses");
    const std::int32_t token = array.data[array.selected].id;
    accept(token);
    return token;
  }

  void accept(std::int32_t token) override { llama_sampler_accept(chain_.get(), token); }

  void ban(std::span<const std::int32_t> tokens) override {
    for (const std::int32_t token : tokens)
      if (token >= 0) banned_.push_back(token);
  }

 private:
  void add(llama_sampler* sampler) { llama_sampler_chain_add(chain_.get(), sampler); }

  llama_sampler_ptr chain_;
  std::vector<llama_token_data> candidates_;
  std::vector<std::int32_t> banned_;
};

}  // namespace

Result<std::unique_ptr<Sampler>> Sampler::create(const SamplerOptions& options) {
  route_llama_log();
  if (auto valid = validate(options); !valid) return std::move(valid).error();
  return std::unique_ptr<Sampler>(std::make_unique<LlamaSampler>(options));
}

}  // namespace qevict
