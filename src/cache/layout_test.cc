#include "cache/layout.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

constexpr CacheShape kSmol{.n_layers = 30, .n_kv_heads = 3, .key_dim = 64, .value_dim = 64};
constexpr CacheShape kLlama{.n_layers = 32, .n_kv_heads = 8, .key_dim = 128, .value_dim = 128};

LayoutRule rule_of(const char* codec, int per_mille) {
  LayoutRule rule;
  rule.codec = codec ? find_codec(codec) : nullptr;
  rule.quantized_per_mille = per_mille;
  rule.ledger = codec && std::string_view(codec).starts_with("int") ? Ledger::kept : Ledger::none;
  return rule;
}

Recent tokens(int n) { return {.kind = Recent::Kind::tokens, .value = n}; }

struct Row {
  CacheShape shape;
  const char* codec;
  int per_mille;
  double ratio;
  int prompt_and_new;
  Recent recent;
  std::size_t budget, head, fixed;
  int quantized, full;
  std::size_t allocated;  // 0: not listed
};

class QBytes : public testing::TestWithParam<Row> {};

TEST_P(QBytes, SlotsAndBytes) {
  const Row& row = GetParam();
  const std::size_t budget = ratio_of(row.ratio, row.shape.full_bytes(row.prompt_and_new));
  EXPECT_EQ(budget, row.budget);
  const std::size_t head = budget / row.shape.heads();
  EXPECT_EQ(head, row.head);
  const Result<HeadLayout> layout =
      plan_layout(row.shape, rule_of(row.codec, row.per_mille), row.recent, head, Raise::automatic_recent);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->fixed_bytes, row.fixed);
  EXPECT_EQ(layout->quantized_slots, row.quantized);
  EXPECT_EQ(layout->full_slots, row.full);
  EXPECT_LE(layout->allocated_bytes(), head);
  if (row.allocated > 0) {
    EXPECT_EQ(layout->allocated_bytes() * row.shape.heads(), row.allocated);
  }
}

const Recent kAuto{};
INSTANTIATE_TEST_SUITE_P(
    QBytes2, QBytes,
    testing::Values(Row{kSmol, "int2", 700, 0.20, 2304, tokens(64), 10616832, 117964, 21820, 121, 11, 10549080},
                    Row{kSmol, "k3v2", 700, 0.20, 2304, tokens(64), 10616832, 117964, 22204, 194, 13, 10410120},
                    Row{kSmol, "int2", 700, 0.20, 2304, tokens(128), 10616832, 117964, 38460, 100, 9, 10535400},
                    Row{kSmol, "k3v2", 700, 0.20, 2304, tokens(128), 10616832, 117964, 38844, 161, 11, 10515960},
                    Row{kSmol, "int2", 700, 0.10, 2304, tokens(64), 5308416, 58982, 21820, 47, 4, 5234760},
                    Row{kSmol, "k3v2", 700, 0.10, 2304, tokens(64), 5308416, 58982, 22204, 74, 5, 5214600},
                    Row{kSmol, "int2", 700, 0.10, 2304, tokens(128), 5308416, 58982, 38460, 26, 2, 5221080},
                    Row{kSmol, "k3v2", 700, 0.10, 2304, tokens(128), 5308416, 58982, 38844, 40, 2, 5104440},
                    Row{kSmol, "int2", 700, 0.05, 2304, tokens(64), 2654208, 29491, 21820, 9, 0, 2410920},
                    Row{kSmol, "k3v2", 700, 0.05, 2304, tokens(64), 2654208, 29491, 22204, 14, 1, 2616840},
                    Row{kSmol, "int2", 700, 0.20, 2304, kAuto, 10616832, 117964, 21820, 121, 11, 10549080},
                    Row{kSmol, "int2", 700, 0.10, 2304, kAuto, 5308416, 58982, 20000, 49, 4, 0},
                    Row{kSmol, "k3v2", 700, 0.10, 2304, kAuto, 5308416, 58982, 20384, 78, 5, 0},
                    Row{kSmol, "int2", 700, 0.05, 2304, kAuto, 2654208, 29491, 12460, 21, 1, 0},
                    Row{kSmol, "k3v2", 700, 0.05, 2304, kAuto, 2654208, 29491, 12844, 33, 2, 0},
                    Row{kSmol, nullptr, 0, 0.20, 2304, tokens(64), 10616832, 117964, 21820, 0, 46, 0},
                    Row{kSmol, "int2", 1000, 0.20, 2304, tokens(64), 10616832, 117964, 21820, 174, 0, 0},
                    Row{kSmol, "k3v2", 1000, 0.20, 2304, tokens(64), 10616832, 117964, 22204, 278, 0, 0}));

INSTANTIATE_TEST_SUITE_P(
    QBytes4, QBytes,
    testing::Values(Row{kLlama, "int2", 700, 0.20, 8320, tokens(64), 218103808, 851968, 43324, 532, 47, 218084352},
                    Row{kLlama, "k3v2", 700, 0.20, 8320, tokens(64), 218103808, 851968, 44092, 851, 59, 217930752},
                    Row{kLlama, "int2", 700, 0.20, 8320, tokens(128), 218103808, 851968, 76348, 510, 45, 217904128},
                    Row{kLlama, "k3v2", 700, 0.20, 8320, tokens(128), 218103808, 851968, 77116, 816, 56, 217283584}));

TEST(QBytes2, ARecentRegionThatLeavesNoWindowIsRefusedWithTheSmallestBudget) {
  const auto layout = plan_layout(kSmol, rule_of("int2", 700), tokens(128), 29491, Raise::automatic_recent);
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().kind, Error::Kind::invalid);
  EXPECT_NE(layout.error().message.find("3532410"), std::string::npos) << layout.error().message;
}

TEST(QBytes3, TheSmallestWorkableBudget) {
  struct Smallest {
    const char* codec;
    Recent recent;
    std::size_t bytes;
  };
  for (const auto& [codec, recent, bytes] :
       {Smallest{"int2", tokens(64), 2034810}, Smallest{"k3v2", tokens(64), 2042640},
        Smallest{"int2", tokens(128), 3532410}, Smallest{"k3v2", tokens(128), 3540240}, Smallest{"int2", kAuto, 724410},
        Smallest{"k3v2", kAuto, 732240}}) {
    const LayoutRule rule = rule_of(codec, 700);
    EXPECT_TRUE(plan_layout(kSmol, rule, recent, bytes / 90, Raise::never));
    const auto refused = plan_layout(kSmol, rule, recent, bytes / 90 - 1, Raise::never);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find(std::to_string(bytes)), std::string::npos) << refused.error().message;
    const auto raised = plan_layout(kSmol, rule, recent, 1, Raise::always);
    ASSERT_TRUE(raised);
    EXPECT_EQ(raised->budget_bytes * 90, bytes);
    EXPECT_EQ(raised->full_slots + raised->quantized_slots, 1);
  }
}

TEST(QBytes5, ACurrentBudgetReachesTheSmallestWorkableAtItsToken) {
  const auto head_bytes = [](int t) { return ratio_of(0.20, kSmol.full_bytes(t)) / kSmol.heads(); };
  EXPECT_EQ(head_bytes(442), 22630u);
  EXPECT_EQ(head_bytes(441), 22579u);
  const LayoutRule rule = rule_of("int2", 700);
  EXPECT_TRUE(plan_layout(kSmol, rule, tokens(64), head_bytes(442), Raise::never));
  EXPECT_FALSE(plan_layout(kSmol, rule, tokens(64), head_bytes(441), Raise::never));
  EXPECT_TRUE(plan_layout(kSmol, rule, kAuto, head_bytes(158), Raise::never));
  EXPECT_FALSE(plan_layout(kSmol, rule, kAuto, head_bytes(157), Raise::never));
}

TEST(QBytes5, RecentAsAShareOfTheBudget) {
  const std::size_t head = ratio_of(0.20, kSmol.full_bytes(512)) / kSmol.heads();
  EXPECT_EQ(head, 26214u);
  const auto layout =
      plan_layout(kSmol, rule_of("int2", 700), {.kind = Recent::Kind::per_mille, .value = 250}, head, Raise::never);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->zones.recent, 25);
}

TEST(QBytes5, AFullBudgetWouldStillQuantize) {
  const auto layout = plan_layout(kSmol, rule_of("int2", 700), tokens(64), kSmol.full_bytes(2304) / 90, Raise::never);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->quantized_slots, 720);
  EXPECT_EQ(layout->full_slots, 65);
}

// Peak KV of layer-major prefill: one layer in f16 beside what was compressed so far.
TEST(QPrefill, PeakIsOneLayerAndTheBudget) {
  struct Peak {
    CacheShape shape;
    int n, m, recent;
    double ratio;
    std::size_t layer, bound, paper, k3v2;
  };
  for (const Peak& peak : {Peak{kSmol, 2048, 256, 64, 0.20, 1572864, 12189696, 12121944, 11982984},
                           Peak{kSmol, 2048, 256, 64, 0.10, 1572864, 6881280, 6807624, 6787464},
                           Peak{kLlama, 8192, 128, 128, 0.20, 33554432, 251658240, 251458560, 250838016},
                           Peak{kLlama, 8192, 128, 128, 0.05, 33554432, 88080384, 86588416, 87059456}}) {
    const std::size_t budget = ratio_of(peak.ratio, peak.shape.full_bytes(peak.n + peak.m));
    const std::size_t layer = static_cast<std::size_t>(peak.n * peak.shape.n_kv_heads) * peak.shape.token_bytes();
    EXPECT_EQ(layer, peak.layer);
    EXPECT_EQ(layer + budget, peak.bound);
    for (const auto& [codec, expected] : {std::pair{"int2", peak.paper}, std::pair{"k3v2", peak.k3v2}}) {
      const auto layout =
          plan_layout(peak.shape, rule_of(codec, 700), tokens(peak.recent), budget / peak.shape.heads(), Raise::never);
      ASSERT_TRUE(layout);
      EXPECT_EQ(layer + layout->allocated_bytes() * peak.shape.heads(), expected) << codec;
    }
  }
}

TEST(Layout, LongContextsGetWiderIndexEntries) {
  LayoutRule rule = rule_of(nullptr, 0);
  rule.zones.window = 1;
  rule.max_windows = 131072;
  const auto layout = plan_layout(kSmol, rule, tokens(64), std::size_t{30000} * 264, Raise::never);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->index_bytes, 8u);
  rule.max_windows = 8192;
  EXPECT_EQ(plan_layout(kSmol, rule, tokens(64), std::size_t{1500} * 264, Raise::never)->index_bytes, 4u);
}

}  // namespace
}  // namespace qevict
