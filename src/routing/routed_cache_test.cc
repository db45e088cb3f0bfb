// HeadCache and route() together, driven at random against a slow model of one head.
#include <gtest/gtest.h>

#include <ostream>

#include "base/half.h"
#include "cache/cache_test_support.h"
#include "routing/reference_head_test.h"
#include "routing/router.h"

namespace qevict {
namespace {

struct HeadKind {
  const char* codec;  // null: no quantized tier
  int dim;
  int window;
  bool promotion = true;
  bool scores = true;  // false: ranked by age
  bool neox = false;
  std::int64_t max_windows = 1 << 20;  // 1 << 28 makes the index entries change their width
  friend void PrintTo(const HeadKind& setup, std::ostream* out) {
    *out << (setup.codec != nullptr ? setup.codec : "f16") << " D=" << setup.dim << " window=" << setup.window
         << (setup.promotion ? "" : " no promotion") << (setup.scores ? "" : " no scores");
  }
};

class RoutedCache : public testing::TestWithParam<HeadKind> {
 protected:
  explicit RoutedCache(const HeadKind& setup = GetParam())
      : cache_(setup.dim, setup.codec, setup.window, setup.neox, setup.neox ? 1.2f : 1.0f) {
    cache_.rule.scores = setup.scores;
    cache_.rule.max_windows = setup.max_windows;
    head_.emplace(cache_.shape, cache_.rule, cache_.rope, cache_.meter);
    model_.emplace(cache_.shape, cache_.rule, cache_.rope, setup.promotion);
  }

  HeadLayout random_layout() {
    int full = rng_.between(0, 6);
    int quantized = cache_.rule.codec != nullptr ? rng_.between(0, 8) : 0;
    if (full + quantized == 0) full = 1;
    if (rng_.below(8) == 0) full += 40;
    return layout_of(cache_.shape, cache_.rule, rng_.between(1, 30), full, quantized);
  }

  TestTokens tokens(int n) {
    TestTokens result = random_tokens(cache_.shape, head_->n_tokens(), n, rng_);
    if (!cache_.rule.scores) result.scores.clear();
    if (n > 0 && rng_.below(4) == 0) {  // values at the end of f16's range: codes of them decode beyond it
      for (int d = 0; d < cache_.shape.value_dim; ++d)
        result.values[static_cast<std::size_t>(d)] = to_half(d % 3 ? 65504.0f : -65504.0f);
    }
    return result;
  }

  // What a step's or a turn's attention does to every accumulator.
  void add_scores() {
    if (!cache_.rule.scores) return;
    const auto add = [&](float& got, float& want) {
      const float more = static_cast<float>(rng_.between(0, 8)) * 0.125f;
      got = got * 0.875f + more;
      want = want * 0.875f + more;
    };
    const std::span<float> tail = head_->tail_scores();
    for (std::size_t i = 0; i < tail.size(); ++i) add(tail[i], model_->tail_score(static_cast<int>(i)));
    const std::vector<float*> full = model_->window_scores(Tier::full);
    const std::vector<float*> codes = model_->window_scores(Tier::quantized);
    ASSERT_EQ(static_cast<int>(full.size()), head_->full_windows());
    ASSERT_EQ(static_cast<int>(codes.size()), head_->quantized_windows());
    for (std::size_t i = 0; i < full.size(); ++i) add(head_->full_score(static_cast<int>(i)), *full[i]);
    for (std::size_t i = 0; i < codes.size(); ++i) add(head_->code_score(static_cast<int>(i)), *codes[i]);
  }

  // One decode step: a token given in f32, score 0 to begin with.
  void step() {
    TestTokens token = tokens(1);
    std::fill(token.scores.begin(), token.scores.end(), 0.0f);
    std::vector<float> key, value;
    for (const Half half : token.keys) key.push_back(to_float(half) * 1.0001f);
    for (const Half half : token.values) value.push_back(to_float(half));
    for (std::size_t d = 0; d < key.size(); ++d) token.keys[d] = to_half(key[d]);
    if (!head_->routed() && head_->tail().n == head_->tail_capacity()) grow(head_->tail().n + rng_.between(1, 40));
    head_->append(key.data(), value.data());
    model_->append(token);
    add_scores();
  }
  void grow(int capacity) {
    head_->reserve_tail(capacity);
    model_->set_capacity(capacity);
  }

  // Routes with the head's tail and `more` behind it. At times an attempt with a broken value comes first.
  void route(const TestTokens& more, const HeadLayout& layout, int& promotions) {
    const TestTokens all = with_tail(*head_, more);
    const Zones& zones = layout.zones;
    const auto n_tokens = static_cast<int>(all.first_position) + all.n;
    const std::int64_t next = head_->windows_routed();
    const std::int64_t left = std::max<std::int64_t>(next, zones.windows_left(n_tokens));
    std::vector<Candidate> candidates = head_->windows();
    for (std::int64_t window = next; window < left; ++window) {
      float score = 0;
      const auto at = static_cast<std::size_t>(zones.first_position(static_cast<int>(window)) - all.first_position);
      for (int t = 0; cache_.rule.scores && t < zones.window; ++t)
        score += all.scores[at + static_cast<std::size_t>(t)];
      candidates.push_back({.window = window, .tier = Tier::none, .score = score});
    }
    if (!cache_.rule.scores) {
      for (Candidate& candidate : candidates) candidate.score = static_cast<float>(candidate.window);
    }
    const RoutingPlan plan = qevict::route(
        event_++, candidates,
        {.full = layout.full_slots, .quantized = layout.quantized_slots, .promotion = GetParam().promotion});
    const std::int64_t keep = zones.first_position(static_cast<int>(left));
    if (rng_.below(3) == 0) refuse_broken_value(plan, all, keep, layout);
    const Result<void> applied = head_->apply(plan, all.view(), keep, layout);
    ASSERT_TRUE(applied) << applied.error().message;
    model_->append(more);
    ASSERT_EQ(plan, model_->route(layout));
    for (const TierMove& move : plan.moves) promotions += move.from == Tier::quantized && move.to == Tier::full;
  }
  void refuse_broken_value(const RoutingPlan& plan, const TestTokens& all, std::int64_t keep,
                           const HeadLayout& layout) {
    for (const TierMove& move : plan.moves) {
      if (move.from != Tier::none || move.to != Tier::quantized) continue;
      TestTokens bad = all;
      const std::int64_t first = cache_.rule.zones.first_position(static_cast<int>(move.window)) - all.first_position;
      bad.keys[static_cast<std::size_t>(first * cache_.shape.key_dim)] = Half{0x7e00};
      const Result<void> refused = head_->apply(plan, bad.view(), keep, layout);
      ASSERT_FALSE(refused);
      EXPECT_NE(refused.error().message.find("window " + std::to_string(move.window)), std::string::npos);
      compare();
      return;
    }
  }
  void compare() {
    expect_equal(snapshot_of(*head_, cache_.shape, cache_.meter, rng_.between(1, 50)), model_->snapshot());
    ASSERT_FALSE(HasFailure());
  }

  TestHeadCache cache_;  // its own head stays empty
  std::optional<HeadCache> head_;
  std::optional<ReferenceHead> model_;
  Rng rng_{0};
  std::int64_t event_ = 0;
};

TEST_P(RoutedCache, EqualsTheSlowModelAfterEveryEvent) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    rng_ = Rng(seed);
    event_ = 0;
    head_.emplace(cache_.shape, cache_.rule, cache_.rope, cache_.meter);
    model_.emplace(cache_.shape, cache_.rule, cache_.rope, GetParam().promotion);
    const int uncompressed_steps = rng_.between(cache_.rule.zones.sinks, 60);
    for (int i = 0; i < uncompressed_steps; ++i) step();
    compare();
    HeadLayout layout = random_layout();
    int promotions = 0;
    for (int event = 0; event < 100; ++event) {
      SCOPED_TRACE("event " + std::to_string(event));
      const bool turn = event > 0 && rng_.below(4) == 0;
      if (!turn && event > 0) {
        const int steps = rng_.between(1, cache_.rule.interval);
        for (int i = 0; i < steps; ++i) step();
        compare();
      }
      if (turn) add_scores();
      if (rng_.below(3) == 0) layout = random_layout();
      route(tokens(turn ? rng_.between(1, 80) : 0), layout, promotions);
      compare();
      if (HasFailure()) return;
    }
    // A run that moves nothing back proves little.
    EXPECT_EQ(promotions > 0, cache_.rule.codec != nullptr && GetParam().promotion);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, RoutedCache,
                         testing::Values(HeadKind{"int2", 64, 8}, HeadKind{"int2", 64, 8, false},
                                         HeadKind{"int4", 64, 8}, HeadKind{"k3v2", 64, 8},
                                         HeadKind{"k3v2", 80, 8, true, true, true}, HeadKind{"int2", 96, 32},
                                         HeadKind{"k3v2", 128, 32, false}, HeadKind{"int4", 80, 32, true, true, true},
                                         HeadKind{"int2", 256, 8, true, true, true}, HeadKind{"k4v4", 64, 4},
                                         HeadKind{"int2", 64, 8, true, false}, HeadKind{"k3v2", 64, 32, true, false},
                                         HeadKind{nullptr, 64, 1}, HeadKind{nullptr, 80, 1, true, false},
                                         HeadKind{nullptr, 64, 8}, HeadKind{nullptr, 96, 32, true, true, true},
                                         HeadKind{"int2", 64, 8, true, true, false, 1 << 28},
                                         HeadKind{nullptr, 64, 1, true, true, false, 1 << 28}));

}  // namespace
}  // namespace qevict
