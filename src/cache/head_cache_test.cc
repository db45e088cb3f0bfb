#include "cache/head_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "cache/cache_test_support.h"

namespace qevict {
namespace {

constexpr Tier kNone = Tier::none;
constexpr Tier kFull = Tier::full;
constexpr Tier kQuantized = Tier::quantized;
constexpr Tier kEvicted = Tier::evicted;
constexpr int kRecent = 8;

// Three windows of 8 have left the recent region of 29 + 8 tokens: 0 and 2 in full precision, 1 in codes.
class HeadCacheTest : public testing::TestWithParam<const char*> {
 protected:
  explicit HeadCacheTest(int dim = 64) : cache_(dim, GetParam(), 8), layout_(cache_.layout(kRecent, 3, 3)) {}

  void SetUp() override {
    Rng rng(7);
    tokens_ = random_tokens(cache_.shape, 0, 37, rng);
    cache_.append(tokens_);
    ASSERT_TRUE(cache_.apply(plan_of({{0, kNone, kFull}, {1, kNone, kQuantized}, {2, kNone, kFull}}, 2, 1), layout_));
  }
  void route(std::vector<TierMove> moves, int full_after, int quantized_after) {
    const Result<void> applied = cache_.apply(plan_of(std::move(moves), full_after, quantized_after), layout_);
    ASSERT_TRUE(applied) << applied.error().message;
  }
  // f16 of the original token before RoPE, in f32.
  std::vector<float> unrotated_keys(int window) const {
    std::vector<float> keys;
    const auto dim = static_cast<std::size_t>(cache_.shape.key_dim);
    for (int t = 0; t < 8; ++t) {
      const int position = 5 + 8 * window + t;
      std::vector<float> key(dim);
      for (std::size_t d = 0; d < dim; ++d)
        key[d] = to_float(tokens_.keys[static_cast<std::size_t>(position) * dim + d]);
      cache_.rope.unrotate(key, position);
      keys.insert(keys.end(), key.begin(), key.end());
    }
    return keys;
  }
  std::vector<float> original_values(int window) const {
    std::vector<float> values;
    const int dim = cache_.shape.value_dim;
    for (int i = 0; i < 8 * dim; ++i)
      values.push_back(to_float(tokens_.values[static_cast<std::size_t>((5 + 8 * window) * dim + i)]));
    return values;
  }
  WindowShape window_shape() const { return cache_.rule.window_shape(cache_.shape); }

  TestHeadCache cache_;
  HeadLayout layout_;
  TestTokens tokens_;
};
INSTANTIATE_TEST_SUITE_P(Codecs, HeadCacheTest, testing::Values("int2", "int4", "k3v2", "k4v4"));

TEST_P(HeadCacheTest, CodesAreMadeOfKeysBeforeRope) {
  const HeadView view = cache_.head.view();
  std::vector<std::byte> record(view.codec->window_bytes(window_shape()));
  ASSERT_TRUE(view.codec->encode(window_shape(), unrotated_keys(1), original_values(1), view.head_data, record));
  const HeadSnapshot snapshot = cache_.snapshot();
  EXPECT_EQ(snapshot.records, std::vector<std::vector<std::byte>>{record});
  EXPECT_EQ(snapshot.code_positions, std::vector<std::int32_t>{13});
}

// qevict-examples.md A15: means and deviations over every candidate of the event of the first demotion, evicted ones
// too; and over the tail where they are fewer than 128 tokens.
TEST_P(HeadCacheTest, HeadParametersComeFromTheFirstDemotionAndStay) {
  const CodecRow& codec = *cache_.rule.codec;
  std::vector<std::byte> expected(codec.head_bytes(window_shape()));
  if (!expected.empty()) {
    std::vector<float> keys, values;
    for (const int window : {0, 1, 2}) {
      for (const float key : unrotated_keys(window)) keys.push_back(key);
      for (const float value : original_values(window)) values.push_back(value);
    }
    for (int position = 5 + 3 * 8; position < tokens_.n; ++position) {  // so few windows: the tail too
      std::vector<float> key;
      for (int d = 0; d < 64; ++d) {
        const auto at = static_cast<std::size_t>(position * 64 + d);
        key.push_back(to_float(tokens_.keys[at]));
        values.push_back(to_float(tokens_.values[at]));
      }
      cache_.rope.unrotate(key, position);
      keys.insert(keys.end(), key.begin(), key.end());
    }
    codec.estimate_head(window_shape(), keys, values, expected);
  }
  TestHeadCache cache{64, GetParam(), 8};
  cache.append(tokens_);
  ASSERT_TRUE(cache.apply(plan_of({{0, kNone, kFull}, {1, kNone, kQuantized}, {2, kNone, kEvicted}}, 1, 1), layout_));
  EXPECT_EQ(cache.snapshot().head_data, expected);
  ASSERT_TRUE(cache.apply(plan_of({{0, kFull, kQuantized}, {1, kQuantized, kFull}}, 1, 1), layout_));
  EXPECT_EQ(cache.snapshot().head_data, expected);
}

TEST_P(HeadCacheTest, DemotingTwiceKeepsTheCodes) {
  route({{0, kFull, kQuantized}}, 1, 2);
  const HeadSnapshot first = cache_.snapshot();
  ASSERT_EQ(first.records.size(), 2u);
  route({{0, kQuantized, kFull}, {1, kQuantized, kFull}}, 3, 0);
  const HeadSnapshot promoted = cache_.snapshot();
  route({{0, kFull, kQuantized}, {1, kFull, kQuantized}}, 1, 2);
  expect_equal(cache_.snapshot(), first);
  route({{0, kQuantized, kFull}, {1, kQuantized, kFull}}, 3, 0);
  expect_equal(cache_.snapshot(), promoted);
}

TEST_P(HeadCacheTest, APromotedWindowHoldsItsCodesRotatedAtItsPositions) {
  const HeadSnapshot before = cache_.snapshot();
  route({{1, kQuantized, kFull}}, 3, 0);
  std::vector<float> keys(8 * 64), values(8 * 64);
  cache_.rule.codec->decode(window_shape(), before.records[0], before.head_data, keys, values);
  const HeadSnapshot after = cache_.snapshot();
  for (int t = 0; t < 8; ++t) {
    cache_.rope.rotate(std::span(keys).subspan(static_cast<std::size_t>(t) * 64, 64), 13 + t);
    for (int d = 0; d < 64; ++d) {
      const auto from = static_cast<std::size_t>(t * 64 + d);
      const auto at = static_cast<std::size_t>((5 + 8) * 64) + from;  // behind sinks and window 0
      ASSERT_EQ(after.keys[at], to_half_saturated(keys[from])) << t << " " << d;
      ASSERT_EQ(after.values[at], to_half_saturated(values[from])) << t << " " << d;
    }
  }
}

TEST_P(HeadCacheTest, EvictedWindowsLeaveTheLedgerToo) {
  route({{1, kQuantized, kFull}}, 3, 0);
  route({{0, kFull, kEvicted}, {1, kFull, kEvicted}, {2, kFull, kEvicted}}, 0, 0);
  EXPECT_TRUE(cache_.snapshot().windows.empty());
  EXPECT_EQ(cache_.head.windows_routed(), 3);
  Rng rng(8);
  cache_.append(random_tokens(cache_.shape, 37, 15, rng));
  // The next window takes over a slot whose ledger was in use; its codes are its own.
  route({{3, kNone, kFull}}, 1, 0);
  route({{3, kFull, kQuantized}}, 0, 1);
  const HeadSnapshot demoted = cache_.snapshot();
  EXPECT_EQ(demoted.code_positions, std::vector<std::int32_t>{29});
  std::vector<float> keys(8 * 64), values(8 * 64);
  cache_.rule.codec->decode(window_shape(), demoted.records[0], demoted.head_data, keys, values);
  for (const float key : keys) ASSERT_TRUE(std::isfinite(key));
}

TEST_P(HeadCacheTest, ANonFiniteChallengerIsRefusedByName) {
  Rng rng(9);
  const TestTokens more = random_tokens(cache_.shape, 37, 16, rng);
  for (const bool in_key : {true, false}) {
    for (const std::uint16_t bits : {0x7e00, 0x7c00, 0xfc00}) {
      TestTokens bad = with_tail(cache_.head, more);
      (in_key ? bad.keys : bad.values)[20 * 64 + 3] = Half{bits};  // position 49: window 5
      const HeadSnapshot before = cache_.snapshot();
      const RoutingPlan plan = plan_of({{0, kFull, kQuantized},
                                        {1, kQuantized, kFull},
                                        {3, kNone, kFull},
                                        {4, kNone, kEvicted},
                                        {5, kNone, kQuantized}},
                                       3, 2);
      const Result<void> refused = cache_.apply(plan, bad, layout_);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().kind, Error::Kind::internal);
      EXPECT_NE(refused.error().message.find("window 5"), std::string::npos) << refused.error().message;
      expect_equal(cache_.snapshot(), before);
    }
  }
}

TEST_P(HeadCacheTest, ANonFiniteStoredWindowIsRefusedByName) {
  Rng rng(10);
  TestTokens more = random_tokens(cache_.shape, 37, 8, rng);
  cache_.append(more);
  const TestTokens all = with_tail(cache_.head, random_tokens(cache_.shape, 45, 0, rng));
  TestTokens bad = all;
  bad.values[5] = Half{0x7c00};  // window 3, kept in full precision for now
  ASSERT_TRUE(cache_.apply(plan_of({{3, kNone, kFull}}, 3, 1), bad, layout_));
  const HeadSnapshot before = cache_.snapshot();
  const Result<void> refused = cache_.apply(plan_of({{3, kFull, kQuantized}}, 2, 2), layout_);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("window 3"), std::string::npos) << refused.error().message;
  expect_equal(cache_.snapshot(), before);
}

TEST_P(HeadCacheTest, ABrokenPlanMovesNothing) {
  struct Broken {
    const char* what;
    RoutingPlan plan;
    std::int64_t keep = 29;
    std::function<void(HeadLayout&)> edit = [](HeadLayout&) {};
  };
  Rng rng(11);
  cache_.append(random_tokens(cache_.shape, 37, 8, rng));
  const Broken cases[] = {
      {"not ascending", plan_of({{1, kQuantized, kFull}, {0, kFull, kQuantized}}, 2, 1)},
      {"a window twice", plan_of({{0, kFull, kQuantized}, {0, kQuantized, kEvicted}}, 1, 1)},
      {"no move", plan_of({{0, kFull, kFull}}, 2, 1)},
      {"back to the tail", plan_of({{0, kFull, kNone}}, 1, 1)},
      {"from the dead", plan_of({{0, kEvicted, kFull}}, 3, 1)},
      {"out of a tier it is not in", plan_of({{1, kFull, kQuantized}}, 1, 2)},
      {"out of no tier", plan_of({{7, kQuantized, kFull}}, 3, 0)},
      {"a challenger passed over", plan_of({{4, kNone, kFull}}, 3, 1), 45},
      {"a challenger known already", plan_of({{2, kNone, kEvicted}}, 2, 1)},
      {"a challenger with no tokens yet",
       plan_of({{3, kNone, kFull}, {4, kNone, kEvicted}, {5, kNone, kEvicted}}, 3, 1), 53},
      {"too many full", plan_of({{1, kQuantized, kFull}, {3, kNone, kFull}}, 4, 0), 37},
      {"too many in codes", plan_of({{0, kFull, kQuantized}}, 1, 2), 29, [](HeadLayout& l) { l.quantized_slots = 1; }},
      {"wrong count of full", plan_of({{3, kNone, kFull}}, 2, 1), 37},
      {"wrong count of codes", plan_of({{3, kNone, kQuantized}}, 2, 1), 37},
      {"a challenger's tokens kept", plan_of({{3, kNone, kEvicted}}, 2, 1), 29},
      {"tokens dropped that no window holds", plan_of({}, 2, 1), 37},
      {"a tail beyond its reserve", plan_of({}, 2, 1), 29, [](HeadLayout& l) { l.recent_capacity = 15; }},
      {"an index too narrow", plan_of({}, 2, 1), 29, [](HeadLayout& l) { l.index_bytes = 0; }},
  };
  const HeadSnapshot before = cache_.snapshot();
  const TestTokens tail = with_tail(cache_.head, random_tokens(cache_.shape, 45, 0, rng));
  for (const Broken& broken : cases) {
    SCOPED_TRACE(broken.what);
    HeadLayout layout = layout_;
    broken.edit(layout);
    EXPECT_THROW(static_cast<void>(cache_.head.apply(broken.plan, tail.view(), broken.keep, layout)), BugError);
    expect_equal(cache_.snapshot(), before);
  }
  ASSERT_TRUE(cache_.head.apply(plan_of({{3, kNone, kFull}}, 3, 1), tail.view(), 37, layout_));
}

TEST(HeadCache, ABrokenFirstRoutingMovesNothing) {
  TestHeadCache cache(64, "int2", 8);
  Rng rng(12);
  const TestTokens tokens = random_tokens(cache.shape, 0, 4, rng);
  cache.append(tokens);
  const HeadSnapshot before = cache.snapshot();
  EXPECT_THROW(static_cast<void>(cache.head.apply(plan_of({}, 0, 0), tokens.view(), 5, cache.layout(8, 1, 1))),
               BugError);
  expect_equal(cache.snapshot(), before);
}

// qevict-examples.md A13: 65536 comes out of these codes, which f16 would make infinite.
TEST(HeadCache, APromotedWindowSaturates) {
  TestHeadCache cache(64, "int2", 8);
  Rng rng(13);
  TestTokens tokens = random_tokens(cache.shape, 0, 21, rng);
  for (int i = 0; i < 64; ++i) {
    tokens.values[static_cast<std::size_t>(5 * 64 + i)] = to_half(i % 2 == 0 ? -65504.0f : 65504.0f);
  }
  for (int i = 0; i < 8 * 64; ++i) {  // keys that reach 92,000 without their rotation
    tokens.keys[static_cast<std::size_t>(5 * 64 + i)] = to_half(rng.below(2) == 0 ? -65504.0f : 65504.0f);
  }
  cache.append(tokens);
  const HeadLayout layout = cache.layout(8, 1, 1);
  ASSERT_TRUE(cache.apply(plan_of({{0, kNone, kQuantized}}, 0, 1), layout));
  ASSERT_TRUE(cache.apply(plan_of({{0, kQuantized, kFull}}, 1, 0), layout));
  const HeadSnapshot promoted = cache.snapshot();
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(to_float(promoted.values[static_cast<std::size_t>(5 * 64 + i)]), i % 2 == 0 ? -65504.0f : 65504.0f);
  }
  for (int i = 0; i < 8 * 64; ++i)
    EXPECT_LE(std::abs(to_float(promoted.keys[static_cast<std::size_t>(5 * 64 + i)])), 65504.0f);
}

// YaRN scales while it rotates, and only some channels: both must be taken off before quantizing.
TEST(HeadCache, DemotionTakesOffTheWholeRotation) {
  for (const bool neox : {false, true}) {
    TestHeadCache cache(96, "k4v4", 8, neox, 1.3f);
    cache.rope.frequency.resize(24);  // channels 48.. are not rotated
    Rng rng(14);
    TestTokens tokens = random_tokens(cache.shape, 0, 21, rng);
    std::vector<float> original(static_cast<std::size_t>(tokens.n) * 96);
    for (std::size_t t = 0; t < 21; ++t) {
      const std::span<float> key = std::span(original).subspan(t * 96, 96);
      for (float& k : key) k = static_cast<float>(rng.normal());
      std::vector<float> rotated(key.begin(), key.end());
      cache.rope.rotate(rotated, static_cast<double>(t));
      for (std::size_t d = 0; d < 96; ++d) tokens.keys[t * 96 + d] = to_half(rotated[d]);
    }
    cache.append(tokens);
    ASSERT_TRUE(cache.apply(plan_of({{0, kNone, kQuantized}}, 0, 1), cache.layout(8, 1, 1)));
    const HeadSnapshot snapshot = cache.snapshot();
    std::vector<float> keys(8 * 96), values(8 * 96);
    const WindowShape shape = cache.rule.window_shape(cache.shape);
    cache.rule.codec->decode(shape, snapshot.records[0], snapshot.head_data, keys, values);
    // 4-bit codes keep 99 % of the energy; a wrong rotation leaves next to nothing.
    EXPECT_LT(relative_error(keys, std::vector<float>(original.begin() + 5 * 96, original.begin() + 13 * 96)), 0.15);
  }
}

TEST(HeadCache, ScoresStartAtZeroWhenTheyAreFirstKept) {
  TestHeadCache cache(64, nullptr, 8);
  cache.head.keep_scores(false);
  Rng rng(15);
  cache.append(random_tokens(cache.shape, 0, 20, rng));
  EXPECT_TRUE(cache.head.tail().scores.empty());
  EXPECT_EQ(cache.meter.bytes().metadata, 0u);
  cache.head.keep_scores(true);
  EXPECT_EQ(cache.snapshot().tail_scores, std::vector<float>(20, 0.0f));
  EXPECT_EQ(cache.meter.bytes().metadata, 20 * sizeof(float));
  cache.head.tail_scores()[3] = 2.0f;
  cache.head.keep_scores(false);
  cache.head.keep_scores(true);
  EXPECT_EQ(cache.snapshot().tail_scores, std::vector<float>(20, 0.0f));
}

// A tier that shrinks across the border between index entries of 8 and 4 bytes, and grows back.
TEST(HeadCache, IndexEntriesChangeTheirWidth) {
  TestHeadCache cache(64, "int2", 8);
  LayoutRule rule = cache.rule;
  rule.max_windows = std::int64_t{1} << 28;  // 4 slots fit into 32 bits
  HeadCache head(cache.shape, rule, cache.rope, cache.meter);
  Rng rng(16);
  const TestTokens tokens = random_tokens(cache.shape, 0, 5 + 8 * 6 + 8, rng);
  const auto layout = [&](int full, int codes) { return layout_of(cache.shape, rule, kRecent, full, codes); };
  ASSERT_EQ(layout(4, 4).index_bytes, 4u);
  ASSERT_EQ(layout(5, 4).index_bytes, 8u);
  std::vector<TierMove> moves;
  for (int w = 0; w < 6; ++w) moves.push_back({w, kNone, w < 3 ? kFull : kQuantized});
  const std::int64_t keep = 5 + 8 * 6;
  ASSERT_TRUE(head.apply(plan_of(moves, 3, 3), tokens.view(), keep, layout(4, 3)));
  const HeadSnapshot narrow = snapshot_of(head, cache.shape, cache.meter);
  for (const auto& [full, codes] : {std::pair{4, 5}, {5, 3}, {3, 3}, {6, 3}, {4, 3}}) {
    ASSERT_TRUE(head.apply(plan_of({}, 3, 3), head.tail(), keep, layout(full, codes)));
    EXPECT_EQ(cache.meter.bytes().total(), layout(full, codes).allocated_bytes()) << full << " " << codes;
  }
  expect_equal(snapshot_of(head, cache.shape, cache.meter), narrow);
}

}  // namespace
}  // namespace qevict
