// A sequence without a model: random queries, keys and values through BudgetedCache and CacheAttention, fed as Session
// feeds them, with a double-precision softmax over the cache's own contents beside every row and step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "engine/cache_attention.h"
#include "kernels/attention_ref.h"
#include "kernels/kernel_test_support.h"

namespace qevict {

inline ModelShape synthetic_shape(int n_layers, int n_kv_heads, int group, int head_dim) {
  ModelShape shape;
  shape.n_layers = n_layers;
  shape.n_kv_heads = n_kv_heads;
  shape.n_heads = n_kv_heads * group;
  shape.head_dim = head_dim;
  shape.attention_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  shape.rope = test_rope(head_dim / 2, false);
  return shape;
}

// Largest errors seen against the double-precision reference.
struct WorstErrors {
  double output = 0;  // of one query head: |out - ref| / |ref|
  double score = 0;   // of one accumulator: |difference| / (1 + |reference|)
};

// What a head holds in tiers, sinks included.
struct TierView {
  explicit TierView(const HeadCache& head) : view(head.view()) {
    head.append_runs(0, head.sink_tokens() + head.full_tokens(), runs);
    head.append_codes(0, head.quantized_windows(), codes);
    view.f16 = runs;
    view.codes = codes;
  }
  TierView(const TierView&) = delete;
  TierView& operator=(const TierView&) = delete;

  std::vector<F16Run> runs;
  std::vector<CodeWindow> codes;
  HeadView view;
};

class SyntheticSequence {
 public:
  // sharpness: deviation of the queries' components. 2 gives logits of deviation 2.
  SyntheticSequence(const ModelShape& shape, const CacheSettings& settings, int n_ctx, std::uint64_t seed = 1,
                    double sharpness = 2)
      : shape_(shape),
        seed_(seed),
        sharpness_(sharpness),
        cache_({.n_layers = shape.n_layers,
                .n_kv_heads = shape.n_kv_heads,
                .key_dim = shape.head_dim,
                .value_dim = shape.head_dim,
                .group = shape.n_heads / shape.n_kv_heads},
               settings, shape_.rope, n_ctx),
        attention_(shape_, cache_),
        settings_(settings) {
    cache_.use_model(shape_.attention_scale,
                     [this](int, std::span<const std::span<const Half>> values,
                            std::span<const std::span<float>> norms) -> Result<void> {
                       for (int h = 0; h < shape_.n_kv_heads; ++h) {
                         value_norms(values[static_cast<std::size_t>(h)], shape_.head_dim,
                                     norms[static_cast<std::size_t>(h)]);
                         for (float& norm : norms[static_cast<std::size_t>(h)])
                           norm *= static_cast<float>(1 + (reversed_ ? shape_.n_kv_heads - 1 - h : h));
                       }
                       return {};
                     });
  }
  SyntheticSequence(const SyntheticSequence&) = delete;
  SyntheticSequence& operator=(const SyntheticSequence&) = delete;

  BudgetedCache& cache() { return cache_; }
  const WorstErrors& errors() const { return errors_; }
  // Of the last row fed: [n_layers][n_heads * head_dim].
  const std::vector<float>& output() const { return output_; }
  // The KV heads, with their query heads, change places: the last one first.
  void reverse_heads() { reversed_ = true; }
  // Of the attention, and of routing.
  void set_threads(int n) {
    n_threads_ = n;
    cache_.use_team([this](const BudgetedCache::Work& work) -> Result<void> {
      team([&](int t) { work(t, n_threads_); }, [](int) {});
      return {};
    });
  }
  void check_against_reference(bool check) { check_ = check; }

  Result<void> prefill(int n, int max_new, int chunk = 64) {
    if (Result<void> begun = cache_.begin_turn(n, max_new); !begun) return begun;
    const auto first = static_cast<int>(cache_.n_tokens());
    const int tail = cache_.tiers().heads().front().tail().n;
    PrefillLayer layer_state(head_shape(), shape_.n_kv_heads, tail + n, cache_.score_power());
    attention_.set_prefill(&layer_state);
    const std::vector<float> weights = cache_.row_weights(n);
    output_.clear();
    for (int layer = 0; layer < shape_.n_layers; ++layer) {
      attention_.begin_layer(layer);
      layer_state.begin(cache_.past(layer), cache_.follows_attention(), weights);
      for (int h = 0; h < shape_.n_kv_heads; ++h) {
        const TokenView kept = cache_.tiers().head(layer, h).tail();
        layer_state.preload(h, kept.keys, kept.values, kept.n);
      }
      std::vector<float> out(row_floats() * static_cast<std::size_t>(n));
      for (int begin = 0; begin < n; begin += chunk) {
        const int rows = std::min(chunk, n - begin);
        const std::vector<float> q = rows_of('q', layer, first + begin, rows);
        const std::vector<float> k = rows_of('k', layer, first + begin, rows);
        const std::vector<float> v = rows_of('v', layer, first + begin, rows);
        layer_state.next_chunk(rows);
        float* chunk_out = out.data() + row_floats() * static_cast<std::size_t>(begin);
        team([&](int t) { attention_.prefill_store(layer, k.data(), v.data(), rows, t, n_threads_); },
             [&](int t) { attention_.prefill_attend(layer, q.data(), rows, chunk_out, t, n_threads_); });
      }
      if (Result<void> failed = attention_.take_error(); !failed) return failed;
      if (check_) check_rows(layer, first, n, tail, layer_state, out);
      output_.insert(output_.end(), out.end() - static_cast<std::ptrdiff_t>(row_floats()), out.end());
      if (Result<void> ended = cache_.end_layer(layer, n, layer_state); !ended) return ended;
      if (check_) check_seed(layer);
      cache_.note_prefill(layer_state.kv_bytes());
    }
    attention_.set_prefill(nullptr);
    return cache_.end_turn();
  }

  Result<void> decode() {
    if (Result<void> begun = cache_.begin_step(); !begun) return begun;
    attention_.begin_step();
    const auto position = static_cast<int>(cache_.n_tokens());
    output_.assign(row_floats() * static_cast<std::size_t>(shape_.n_layers), 0);
    for (int layer = 0; layer < shape_.n_layers; ++layer) {
      const std::vector<float> q = rows_of('q', layer, position, 1);
      const std::vector<float> k = rows_of('k', layer, position, 1);
      const std::vector<float> v = rows_of('v', layer, position, 1);
      std::vector<Expected> expected;
      for (int h = 0; check_ && h < shape_.n_kv_heads; ++h) expected.push_back(expect_step(layer, h, q, k, v));
      float* out = output_.data() + row_floats() * static_cast<std::size_t>(layer);
      team([&](int t) { attention_.decode_partial(layer, q.data(), k.data(), v.data(), t, n_threads_); },
           [&](int t) { attention_.decode_merge(layer, out, t, n_threads_); });
      if (Result<void> failed = attention_.take_error(); !failed) return failed;
      for (int h = 0; check_ && h < shape_.n_kv_heads; ++h)
        compare_step(layer, h, expected[static_cast<std::size_t>(h)], out);
    }
    return cache_.end_step();
  }

  // One number of the stream is this instead.
  struct Broken {
    char kind = ' ';  // 'q', 'k' or 'v'
    int layer = 0;
    int position = 0;
    float value = 0;
  };
  void break_value(const Broken& broken) { broken_ = broken; }

  // [n][heads][head_dim] of one layer: 'q', 'k' (with a mean per channel, as real keys have) or 'v'.
  std::vector<float> rows_of(char kind, int layer, int first, int n) const {
    std::vector<float> rows;
    const int width = (kind == 'q' ? shape_.n_heads : shape_.n_kv_heads) * shape_.head_dim;
    for (int position = first; position < first + n; ++position) {
      Rng rng(seed_ * 1000003 +
              static_cast<std::uint64_t>((position * shape_.n_layers + layer) * 4 + (kind == 'q'   ? 0
                                                                                     : kind == 'k' ? 1
                                                                                                   : 2)));
      for (int i = 0; i < width; ++i) {
        const double mean = kind == 'k' ? 0.5 * std::sin(7.0 * i) : 0;
        rows.push_back(static_cast<float>(mean + rng.normal() * (kind == 'q' ? sharpness_ : 1)));
      }
      if (reversed_) {
        const auto per_head = static_cast<std::ptrdiff_t>(width / shape_.n_kv_heads);
        const auto row = rows.end() - width;
        for (std::ptrdiff_t h = 0; h < shape_.n_kv_heads / 2; ++h)
          std::swap_ranges(row + h * per_head, row + (h + 1) * per_head, rows.end() - (h + 1) * per_head);
      }
      if (kind == broken_.kind && layer == broken_.layer && position == broken_.position) rows.back() = broken_.value;
    }
    return rows;
  }

 private:
  struct Expected {
    std::vector<double> out;                // [group][head_dim]
    std::vector<double> full, codes, tail;  // accumulators after the step
  };

  HeadShape head_shape() const { return {shape_.head_dim, shape_.head_dim, shape_.n_heads / shape_.n_kv_heads}; }
  std::size_t row_floats() const { return static_cast<std::size_t>(shape_.n_heads * shape_.head_dim); }
  std::size_t group_floats() const { return row_floats() / static_cast<std::size_t>(shape_.n_kv_heads); }

  // Two phases on every thread, a barrier between them, as ggml runs them.
  template <class First, class Second>
  void team(First first, Second second) {
    std::barrier barrier(n_threads_);
    std::vector<std::thread> threads;
    const auto run = [&](int t) {
      first(t);
      barrier.arrive_and_wait();
      second(t);
    };
    for (int t = 1; t < n_threads_; ++t) threads.emplace_back(run, t);
    run(0);
    for (std::thread& thread : threads) thread.join();
  }

  // Mean over the group of a reference row's probabilities.
  std::vector<double> mean_of(const ReferenceRow& row) const {
    std::vector<double> mean(row.n_tokens);
    const std::size_t group = row.probability.size() / row.n_tokens;
    for (std::size_t i = 0; i < row.probability.size(); ++i)
      mean[i % row.n_tokens] += row.probability[i] / static_cast<double>(group);
    for (double& p : mean) p = std::pow(p, cache_.score_power());
    return mean;
  }
  // Of the accumulators themselves, not of their roots.
  static double sum_of(std::span<const float> accumulators) {
    double sum = 0;
    for (const float a : accumulators) sum += static_cast<double>(a);
    return sum;
  }
  void note_output(std::span<const float> got, std::span<const double> want) {
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    for (std::size_t at = 0; at < want.size(); at += dim) {
      errors_.output = std::max(errors_.output, relative_error(got.subspan(at, dim), want.subspan(at, dim)));
    }
  }
  void note_score(double got, double want) {
    errors_.score = std::max(errors_.score, std::abs(got - want) / (1 + std::abs(want)));
  }

  Expected expect_step(int layer, int h, const std::vector<float>& q, const std::vector<float>& k,
                       const std::vector<float>& v) {
    HeadCache& head = cache_.tiers().head(layer, h);
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    const int window = settings_.rule.zones.window;
    const TierView past(head);
    const TokenView tail = head.tail();
    std::vector<Half> keys(tail.keys.begin(), tail.keys.end());
    std::vector<Half> values(tail.values.begin(), tail.values.end());
    for (std::size_t d = 0; d < dim; ++d) keys.push_back(to_half(k[static_cast<std::size_t>(h) * dim + d]));
    for (std::size_t d = 0; d < dim; ++d) values.push_back(to_half(v[static_cast<std::size_t>(h) * dim + d]));
    const ReferenceRow row = attend_row_reference(
        head_shape(), &past.view, keys.data(), values.data(), tail.n + 1,
        std::span(q).subspan(static_cast<std::size_t>(h) * group_floats(), group_floats()), shape_.attention_scale);
    Expected expected{.out = row.out, .full = {}, .codes = {}, .tail = {}};
    if (!cache_.follows_attention()) return expected;
    const std::vector<double> mean = mean_of(row);
    const double decay = static_cast<double>(cache_.decay());
    std::size_t at = static_cast<std::size_t>(head.sink_tokens());
    const auto window_sum = [&] {
      double sum = 0;
      for (int t = 0; t < window; ++t) sum += mean[at++];
      return sum;
    };
    for (int i = 0; i < head.full_windows(); ++i)
      expected.full.push_back(decay * sum_of(head.full_scores(i)) + window_sum());
    for (int i = 0; i < head.quantized_windows(); ++i)
      expected.codes.push_back(decay * sum_of(head.code_scores(i)) + window_sum());
    for (const float score : tail.scores) expected.tail.push_back(decay * static_cast<double>(score) + mean[at++]);
    expected.tail.push_back(mean[at]);
    return expected;
  }
  void compare_step(int layer, int h, const Expected& expected, const float* out) {
    note_output({out + static_cast<std::size_t>(h) * group_floats(), group_floats()}, expected.out);
    if (!cache_.follows_attention()) return;
    HeadCache& head = cache_.tiers().head(layer, h);
    ASSERT_EQ(head.tail_scores().size(), expected.tail.size());
    for (std::size_t i = 0; i < expected.full.size(); ++i)
      note_score(static_cast<float>(sum_of(head.full_scores(static_cast<int>(i)))), expected.full[i]);
    for (std::size_t i = 0; i < expected.codes.size(); ++i)
      note_score(static_cast<float>(sum_of(head.code_scores(static_cast<int>(i)))), expected.codes[i]);
    for (std::size_t i = 0; i < expected.tail.size(); ++i) note_score(head.tail_scores()[i], expected.tail[i]);
  }

  // Rows of a turn: outputs, and what every accumulator must be at the layer's end, by window and by position.
  void check_rows(int layer, int first, int n, int tail, const PrefillLayer& layer_state,
                  const std::vector<float>& out) {
    seeds_.assign(static_cast<std::size_t>(shape_.n_kv_heads), {});
    const std::span<const HeadView> past = cache_.past(layer);
    for (int h = 0; h < shape_.n_kv_heads; ++h) {
      HeadCache& head = cache_.tiers().head(layer, h);
      Seed& seed = seeds_[static_cast<std::size_t>(h)];
      const double kept = std::pow(static_cast<double>(cache_.decay()), n);
      for (const Candidate& window : head.windows())
        seed.windows[window.window] = kept * static_cast<double>(window.score);
      const TokenView old = head.tail();
      for (int i = 0; i < old.n && !old.scores.empty(); ++i) {
        seed.tokens[old.first_position + i] = kept * static_cast<double>(old.scores[static_cast<std::size_t>(i)]);
      }
      for (int r = 0; r < n; ++r) {
        const std::vector<float> q = rows_of('q', layer, first + r, 1);
        const ReferenceRow row = attend_row_reference(
            head_shape(), past.empty() ? nullptr : &past[static_cast<std::size_t>(h)], layer_state.keys(h),
            layer_state.values(h), tail + r + 1,
            std::span(q).subspan(static_cast<std::size_t>(h) * group_floats(), group_floats()), shape_.attention_scale);
        note_output(std::span(out).subspan(
                        row_floats() * static_cast<std::size_t>(r) + static_cast<std::size_t>(h) * group_floats(),
                        group_floats()),
                    row.out);
        if (cache_.follows_attention())
          add_row(head, row, static_cast<double>(settings_.ranking->rule.row_weight(r, n)), first - tail, seed);
      }
    }
  }
  struct Seed {
    std::map<std::int64_t, double> windows;  // in a tier when the turn began
    std::map<std::int64_t, double> tokens;   // by position
  };
  void add_row(const HeadCache& head, const ReferenceRow& row, double weight, int tail_position, Seed& seed) {
    const std::vector<double> mean = mean_of(row);
    const int window = settings_.rule.zones.window;
    std::size_t at = static_cast<std::size_t>(head.sink_tokens());
    const std::vector<Candidate> windows = head.windows();
    for (const Tier tier : {Tier::full, Tier::quantized}) {
      for (const Candidate& candidate : windows) {
        for (int t = 0; candidate.tier == tier && t < window; ++t)
          seed.windows[candidate.window] += weight * mean[at++];
      }
    }
    for (int position = tail_position; at < mean.size(); ++position) seed.tokens[position] += weight * mean[at++];
  }
  // The scores after the layer's end, routed or not; and that no window left was better than one that stayed.
  void check_seed(int layer) {
    if (!cache_.follows_attention() || settings_.scores.probes || (settings_.scores.expected && cache_.n_tokens() == 0))
      return;
    const Zones& zones = settings_.rule.zones;
    for (int h = 0; h < shape_.n_kv_heads; ++h) {
      HeadCache& head = cache_.tiers().head(layer, h);
      Seed& seed = seeds_[static_cast<std::size_t>(h)];
      const TokenView tail = head.tail();
      for (int i = 0; i < tail.n; ++i)
        note_score(tail.scores[static_cast<std::size_t>(i)], seed.tokens[tail.first_position + i]);
      for (const auto& [position, score] : seed.tokens) {
        const std::int64_t window = (position - zones.sinks) / zones.window;
        if (head.routed() && position >= zones.sinks && window < head.windows_routed()) seed.windows[window] += score;
      }
      double worst_kept = 1e300;
      for (const Candidate& window : head.windows()) {
        if (cache_.score_power() == 1) note_score(window.score, seed.windows[window.window]);
        const bool by_score_alone = !settings_.rule.weights && settings_.allocator->sharing != Sharing::one_set;
        if (by_score_alone && (settings_.promotion || settings_.rule.codec == nullptr))
          worst_kept = std::min(worst_kept, seed.windows[window.window]);
        seed.windows.erase(window.window);
      }
      for (const auto& [window, score] : seed.windows) {
        EXPECT_TRUE(settings_.ranking->score != nullptr || cache_.score_power() > 1 || worst_kept == 1e300 ||
                    score <= worst_kept * (1 + 1e-4))
            << "window " << window << " was better than one that stayed";
      }
    }
  }

  ModelShape shape_;
  std::uint64_t seed_;
  double sharpness_;
  BudgetedCache cache_;
  CacheAttention attention_;
  CacheSettings settings_;
  int n_threads_ = 1;
  bool check_ = false;
  bool reversed_ = false;
  Broken broken_;
  WorstErrors errors_;
  std::vector<float> output_;
  std::vector<Seed> seeds_;  // [n_kv_heads]
};

// Sanitized code is ten times as slow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Every row of the method table, as test parameters; where code is sanitized, rows that between them use every part.
inline std::vector<std::string_view> method_names() {
  if (kSanitized) {
    return {"full",
            "qevict",
            "qevict-paper",
            "r4",
            "streaming-llm-in-cache",
            "tova",
            "criticalkv",
            "layer-defensivekv",
            "expected-attention",
            "keydiff",
            "kvquant-nuq3",
            "zipcache"};
  }
  std::vector<std::string_view> names;
  for (const Method& method : methods()) names.push_back(method.name);
  return names;
}
inline std::string method_test_name(const testing::TestParamInfo<std::string_view>& one) {
  std::string name(one.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

inline CacheSettings settings_of(const CacheConfig& config, int n_ctx) {
  Result<CacheSettings> settings = CacheSettings::from(config, n_ctx);
  if (!settings) throw std::runtime_error(settings.error().message);
  return *settings;
}

}  // namespace qevict
