// What the tests of the cache share: random tokens, and everything one head shows as one comparable value.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "cache/head_cache.h"
#include "kernels/kernel_test_support.h"

namespace qevict {

// Contiguous tokens, owned.
struct TestTokens {
  std::vector<Half> keys;    // [n][key_dim], after RoPE
  std::vector<Half> values;  // [n][value_dim]
  std::vector<float> scores;
  std::int64_t first_position = 0;
  int n = 0;

  TokenView view() const { return {keys, values, scores, first_position, n}; }
};

inline TestTokens random_tokens(const CacheShape& shape, std::int64_t first_position, int n, Rng& rng) {
  TestTokens tokens{.keys = {}, .values = {}, .scores = {}, .first_position = first_position, .n = n};
  for (int i = 0; i < n * shape.key_dim; ++i) tokens.keys.push_back(to_half(static_cast<float>(3 * rng.normal())));
  for (int i = 0; i < n * shape.value_dim; ++i) tokens.values.push_back(to_half(static_cast<float>(rng.normal())));
  for (int i = 0; i < n; ++i) tokens.scores.push_back(static_cast<float>(rng.between(0, 40)) * 0.25f);
  return tokens;
}

// The head's tail followed by `more`: what a prefill hands to apply().
inline TestTokens with_tail(const HeadCache& head, const TestTokens& more) {
  const TokenView tail = head.tail();
  TestTokens all{.keys = {tail.keys.begin(), tail.keys.end()},
                 .values = {tail.values.begin(), tail.values.end()},
                 .scores = {tail.scores.begin(), tail.scores.end()},
                 .first_position = tail.first_position,
                 .n = tail.n + more.n};
  all.keys.insert(all.keys.end(), more.keys.begin(), more.keys.end());
  all.values.insert(all.values.end(), more.values.begin(), more.values.end());
  all.scores.insert(all.scores.end(), more.scores.begin(), more.scores.end());
  return all;
}

// Everything a head shows.
struct HeadSnapshot {
  std::int64_t n_tokens = 0;
  std::int64_t windows_routed = 0;
  std::vector<std::pair<std::int64_t, Tier>> windows;  // ascending
  std::vector<float> window_scores;
  std::vector<Half> keys, values;  // f16, in the order of attention
  std::int64_t tail_position = 0;
  std::vector<float> tail_scores;
  std::vector<std::int32_t> code_positions;
  std::vector<std::vector<std::byte>> records;
  std::vector<std::byte> head_data;       // empty while there are no codes
  std::array<std::size_t, 5> bytes = {};  // f16, full, quantized, ledger, metadata

  friend bool operator==(const HeadSnapshot&, const HeadSnapshot&) = default;
};

inline std::array<std::size_t, 5> parts_of(const CacheBytes& bytes) {
  return {bytes.f16, bytes.full, bytes.quantized, bytes.ledger, bytes.metadata};
}

// Asks for the f16 tokens and the codes in pieces of `piece` tokens and windows.
inline HeadSnapshot snapshot_of(const HeadCache& head, const CacheShape& shape, const ByteMeter& meter,
                                int piece = 1 << 20) {
  HeadSnapshot result;
  result.n_tokens = head.n_tokens();
  result.windows_routed = head.windows_routed();
  for (const Candidate& window : head.windows()) {
    result.windows.emplace_back(window.window, window.tier);
    result.window_scores.push_back(window.score);
  }
  for (int begin = 0; begin < head.f16_tokens(); begin += piece) {
    std::vector<F16Run> runs;
    int next = begin;
    head.append_runs(begin, std::min(head.f16_tokens(), begin + piece), runs);
    for (const F16Run& run : runs) {
      EXPECT_EQ(run.first_token, next) << "runs follow each other";
      next += run.n_tokens;
      result.keys.insert(result.keys.end(), run.keys, run.keys + run.n_tokens * shape.key_dim);
      result.values.insert(result.values.end(), run.values, run.values + run.n_tokens * shape.value_dim);
    }
    EXPECT_EQ(next, std::min(head.f16_tokens(), begin + piece));
  }
  const TokenView tail = head.tail();
  result.tail_position = tail.first_position;
  result.tail_scores.assign(tail.scores.begin(), tail.scores.end());
  std::vector<CodeWindow> codes;
  for (int begin = 0; begin < head.quantized_windows(); begin += piece) {
    head.append_codes(begin, std::min(head.quantized_windows(), begin + piece), codes);
  }
  const HeadView view = head.view();
  for (const CodeWindow& code : codes) {
    result.code_positions.push_back(code.position);
    result.records.emplace_back(code.record, code.record + view.codec->window_bytes(view.window));
  }
  if (!codes.empty()) result.head_data.assign(view.head_data.begin(), view.head_data.end());
  result.bytes = parts_of(meter.bytes());
  return result;
}

inline void expect_equal(const HeadSnapshot& got, const HeadSnapshot& want) {
  EXPECT_EQ(got.n_tokens, want.n_tokens);
  EXPECT_EQ(got.windows_routed, want.windows_routed);
  EXPECT_EQ(got.windows, want.windows);
  EXPECT_EQ(got.window_scores, want.window_scores);
  EXPECT_TRUE(got.keys == want.keys) << got.keys.size() << " halves, expected " << want.keys.size();
  EXPECT_TRUE(got.values == want.values) << got.values.size() << " halves, expected " << want.values.size();
  EXPECT_EQ(got.tail_position, want.tail_position);
  EXPECT_EQ(got.tail_scores, want.tail_scores);
  EXPECT_EQ(got.code_positions, want.code_positions);
  EXPECT_TRUE(got.records == want.records);
  EXPECT_TRUE(got.head_data == want.head_data);
  EXPECT_EQ(got.bytes, want.bytes);
}

// A layout of the given capacities, as plan_layout would make it.
inline HeadLayout layout_of(const CacheShape& shape, const LayoutRule& rule, int recent, int full_slots,
                            int quantized_slots) {
  HeadLayout layout;
  layout.zones = rule.zones;
  layout.zones.recent = recent;
  layout.recent_capacity = layout.zones.recent_capacity(rule.interval);
  layout.full_slots = full_slots;
  layout.quantized_slots = quantized_slots;
  layout.index_bytes = WindowIndex::entry_bytes_for(std::max(full_slots, quantized_slots), rule.max_windows);
  const std::size_t metadata = layout.index_bytes + rule.score_bytes();
  layout.fixed_bytes = static_cast<std::size_t>(rule.zones.sinks) * shape.token_bytes() +
                       static_cast<std::size_t>(layout.recent_capacity) * (shape.token_bytes() + rule.score_bytes()) +
                       rule.head_param_bytes(shape);
  layout.full_slot_bytes = static_cast<std::size_t>(rule.zones.window) * shape.token_bytes() + metadata +
                           (rule.ledger == Ledger::kept ? rule.payload_bytes(shape) : 0);
  layout.quantized_slot_bytes = rule.codec != nullptr ? rule.payload_bytes(shape) + metadata : 0;
  layout.budget_bytes = layout.allocated_bytes();
  return layout;
}

// A head of one codec with windows of `window` tokens, and where its bytes are counted.
struct TestHeadCache {
  CacheShape shape;
  LayoutRule rule;
  Rope rope;
  ByteMeter meter;
  HeadCache head;

  TestHeadCache(int dim, const char* codec, int window, bool neox = false, float magnitude = 1.0f)
      : shape{.n_layers = 1, .n_kv_heads = 1, .key_dim = dim, .value_dim = dim},
        rule{.zones = {.sinks = 5, .window = window, .recent = 0},
             .interval = 8,
             .codec = codec != nullptr ? find_codec(codec) : nullptr,
             .ledger = codec != nullptr ? Ledger::kept : Ledger::none},
        rope(test_rope(dim / 2, neox, magnitude)),
        head(shape, rule, rope, meter) {}

  HeadLayout layout(int recent, int full_slots, int quantized_slots) const {
    return layout_of(shape, rule, recent, full_slots, quantized_slots);
  }
  HeadSnapshot snapshot(int piece = 1 << 20) const { return snapshot_of(head, shape, meter, piece); }
  void append(const TestTokens& tokens) {
    head.reserve_tail(std::max(head.tail_capacity(), head.tail().n + tokens.n));
    head.append(tokens.keys, tokens.values, tokens.scores, tokens.n);
  }
  // Every token unrouted that is not in the windows of `plan` stays in the tail.
  Result<void> apply(const RoutingPlan& plan, const TestTokens& tokens, const HeadLayout& new_layout) {
    std::int64_t challengers = 0;
    for (const TierMove& move : plan.moves) challengers += move.from == Tier::none;
    return head.apply(plan, tokens.view(), rule.zones.sinks + rule.zones.window * (head.windows_routed() + challengers),
                      new_layout);
  }
  Result<void> apply(const RoutingPlan& plan, const HeadLayout& new_layout) {
    const TestTokens none{.keys = {}, .values = {}, .scores = {}, .first_position = 0, .n = 0};
    return apply(plan, with_tail(head, none), new_layout);
  }
};

inline RoutingPlan plan_of(std::vector<TierMove> moves, int full_after, int quantized_after) {
  return {.event = 0, .moves = std::move(moves), .full_after = full_after, .quantized_after = quantized_after};
}

}  // namespace qevict
