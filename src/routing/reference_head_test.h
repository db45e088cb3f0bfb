// One KV head as qevict.md sections 1 to 4 say it, slow and obvious: a map from window id to tier, score, values and
// codes, and every token it ever saw. Nothing is packed, moved or reused. What HeadCache and route() are tested
// against.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "cache/cache_test_support.h"
#include "routing/router.h"

namespace qevict {

class ReferenceHead {
 public:
  ReferenceHead(const CacheShape& shape, const LayoutRule& rule, const Rope& rope, bool promotion)
      : shape_(shape), rule_(rule), rope_(rope), promotion_(promotion) {}

  void append(const TestTokens& tokens) {
    tokens_.keys.insert(tokens_.keys.end(), tokens.keys.begin(), tokens.keys.end());
    tokens_.values.insert(tokens_.values.end(), tokens.values.begin(), tokens.values.end());
    if (rule_.scores) tokens_.scores.insert(tokens_.scores.end(), tokens.scores.begin(), tokens.scores.end());
    tokens_.n += tokens.n;
  }
  int n_tokens() const { return tokens_.n; }
  bool routed() const { return routed_; }
  int tail_position() const { return routed_ ? first_position(next_) : 0; }
  // Accumulators of the tail's i-th token, and of the windows in a tier.
  float& tail_score(int i) { return tokens_.scores[static_cast<std::size_t>(tail_position() + i)]; }
  std::vector<float*> window_scores(Tier tier) {
    std::vector<float*> scores;
    for (auto& [id, window] : windows_) {
      if (window.tier == tier) scores.push_back(&window.score);
    }
    return scores;
  }
  void set_capacity(int n_tokens) { capacity_ = n_tokens; }  // while unrouted

  // Ranks by a plain sort, moves the windows, and says what moved. Challengers, and their scores, come from the tokens.
  RoutingPlan route(const HeadLayout& layout) {
    layout_ = layout;
    routed_ = true;
    while (first_position(next_) + rule_.zones.window + layout.zones.recent <= tokens_.n) add_challenger(next_++);
    std::vector<std::int64_t> order;
    for (const auto& [id, window] : windows_) {
      if (window.tier != Tier::evicted) order.push_back(id);
    }
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return rank_score(a) > rank_score(b); });
    std::map<std::int64_t, Tier> next;
    int full = 0;
    int quantized = 0;
    for (const std::int64_t id : order) {
      if (full < layout.full_slots && (promotion_ || windows_[id].tier != Tier::quantized)) {
        next[id] = Tier::full;
        ++full;
      }
    }
    for (const std::int64_t id : order) {
      if (next.count(id)) continue;
      next[id] = quantized < layout.quantized_slots ? Tier::quantized : Tier::evicted;
      quantized += next[id] == Tier::quantized;
    }
    RoutingPlan plan{.event = event_++, .moves = {}, .full_after = full, .quantized_after = quantized};
    for (const auto& [id, tier] : next) {
      if (windows_[id].tier != tier) plan.moves.push_back({.window = id, .from = windows_[id].tier, .to = tier});
    }
    if (quantized > 0 && !frozen_) freeze();
    for (const TierMove& move : plan.moves) carry_out(move);
    return plan;
  }

  HeadSnapshot snapshot() const {
    HeadSnapshot result;
    result.n_tokens = tokens_.n;
    result.windows_routed = next_;
    if (routed_) add_tokens(0, rule_.zones.sinks, result);
    for (const auto& [id, window] : windows_) {
      if (window.tier == Tier::evicted) continue;
      result.windows.emplace_back(id, window.tier);
      result.window_scores.push_back(window.score);
      if (window.tier == Tier::full) {
        result.keys.insert(result.keys.end(), window.keys.begin(), window.keys.end());
        result.values.insert(result.values.end(), window.values.begin(), window.values.end());
      } else {
        result.code_positions.push_back(first_position(id));
        result.records.push_back(window.codes);
      }
    }
    result.tail_position = tail_position();
    add_tokens(tail_position(), tokens_.n, result);
    if (rule_.scores) result.tail_scores.assign(tokens_.scores.begin() + tail_position(), tokens_.scores.end());
    if (!result.records.empty()) result.head_data = head_data_;
    const std::size_t token = shape_.token_bytes();
    if (!routed_) {
      result.bytes = {static_cast<std::size_t>(capacity_) * token, 0, 0, 0,
                      static_cast<std::size_t>(capacity_) * rule_.score_bytes()};
      return result;
    }
    const auto full = static_cast<std::size_t>(layout_.full_slots);
    const auto codes = static_cast<std::size_t>(layout_.quantized_slots);
    const auto recent = static_cast<std::size_t>(layout_.recent_capacity);
    result.bytes = {(static_cast<std::size_t>(rule_.zones.sinks) + recent) * token,
                    full * static_cast<std::size_t>(rule_.zones.window) * token, codes * rule_.payload_bytes(shape_),
                    full * rule_.payload_bytes(shape_) + rule_.head_param_bytes(shape_),
                    (full + codes) * (layout_.index_bytes + rule_.score_bytes()) + recent * rule_.score_bytes()};
    return result;
  }

 private:
  struct Window {
    Tier tier = Tier::none;
    float score = 0;
    std::vector<Half> keys, values;  // what attention sees in full precision, keys after RoPE
    std::vector<std::byte> codes;    // the ledger entry; empty if it was never demoted
  };

  int first_position(std::int64_t id) const { return rule_.zones.sinks + rule_.zones.window * static_cast<int>(id); }
  float rank_score(std::int64_t id) const { return rule_.scores ? windows_.at(id).score : static_cast<float>(id); }

  void add_tokens(int begin, int end, HeadSnapshot& to) const {
    const auto rows = [&](const std::vector<Half>& from, int dim, std::vector<Half>& into) {
      into.insert(into.end(), from.begin() + std::ptrdiff_t{begin} * dim, from.begin() + std::ptrdiff_t{end} * dim);
    };
    rows(tokens_.keys, shape_.key_dim, to.keys);
    rows(tokens_.values, shape_.value_dim, to.values);
  }

  void add_challenger(std::int64_t id) {
    Window window;
    HeadSnapshot copy;
    add_tokens(first_position(id), first_position(id + 1), copy);
    window.keys = copy.keys;
    window.values = copy.values;
    for (int t = first_position(id); rule_.scores && t < first_position(id + 1); ++t) {
      window.score += tokens_.scores[static_cast<std::size_t>(t)];
    }
    windows_[id] = std::move(window);
  }

  template <class Turn>
  void turn_keys(std::int64_t id, std::vector<float>& keys, Turn turn) const {
    for (int t = 0; t < rule_.zones.window; ++t) {
      const auto dim = static_cast<std::size_t>(shape_.key_dim);
      turn(std::span(keys).subspan(static_cast<std::size_t>(t) * dim, dim), first_position(id) + t);
    }
  }
  std::vector<float> unrotated(std::int64_t id) const {
    std::vector<float> keys = floats(windows_.at(id).keys);
    turn_keys(id, keys, [&](std::span<float> key, int position) { rope_.unrotate(key, position); });
    return keys;
  }
  static std::vector<float> floats(const std::vector<Half>& halves) {
    std::vector<float> result;
    for (const Half half : halves) result.push_back(to_float(half));
    return result;
  }

  // Means and deviations over every window that is a candidate now (qevict-examples.md A15), and at least 128 tokens.
  void freeze() {
    frozen_ = true;
    head_data_.resize(rule_.head_param_bytes(shape_));
    if (head_data_.empty()) return;
    std::vector<float> keys, values;
    for (const auto& [id, window] : windows_) {
      if (window.tier == Tier::evicted) continue;
      for (const float key : unrotated(id)) keys.push_back(key);
      for (const float value : floats(window.values)) values.push_back(value);
    }
    // Too few tokens to go by: those of the tail too.
    const auto key_dim = static_cast<std::size_t>(shape_.key_dim);
    for (int t = tail_position(); t < tokens_.n && keys.size() < 128 * key_dim; ++t) {
      HeadSnapshot token;
      add_tokens(t, t + 1, token);
      std::vector<float> key = floats(token.keys);
      rope_.unrotate(key, t);
      keys.insert(keys.end(), key.begin(), key.end());
      for (const float value : floats(token.values)) values.push_back(value);
    }
    rule_.codec->estimate_head(rule_.window_shape(shape_), keys, values, head_data_);
  }

  void carry_out(const TierMove& move) {
    Window& window = windows_[move.window];
    const WindowShape shape = rule_.window_shape(shape_);
    if (move.to == Tier::quantized) {
      if (window.codes.empty()) {
        window.codes.resize(rule_.payload_bytes(shape_));
        EXPECT_TRUE(
            rule_.codec->encode(shape, unrotated(move.window), floats(window.values), head_data_, window.codes));
      }
      window.keys.clear();
      window.values.clear();
    } else if (move.from == Tier::quantized && move.to == Tier::full) {
      std::vector<float> keys(static_cast<std::size_t>(shape.tokens * shape.key_dim));
      std::vector<float> values(static_cast<std::size_t>(shape.tokens * shape.value_dim));
      rule_.codec->decode(shape, window.codes, head_data_, keys, values);
      turn_keys(move.window, keys, [&](std::span<float> key, int position) { rope_.rotate(key, position); });
      for (const float key : keys) window.keys.push_back(to_half_saturated(key));
      for (const float value : values) window.values.push_back(to_half_saturated(value));
    } else if (move.to == Tier::evicted) {
      window = {};
    }
    window.tier = move.to;
  }

  CacheShape shape_;
  LayoutRule rule_;
  Rope rope_;
  bool promotion_;
  TestTokens tokens_;  // by position
  std::map<std::int64_t, Window> windows_;
  std::int64_t next_ = 0;
  bool routed_ = false;
  bool frozen_ = false;
  std::vector<std::byte> head_data_;
  HeadLayout layout_;
  int capacity_ = 0;
  std::int64_t event_ = 0;
};

}  // namespace qevict
