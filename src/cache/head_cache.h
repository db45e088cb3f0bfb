// The cache of one KV head: sinks, full-precision windows, codes, ledger and the f16 region of newest tokens.
//
// A head starts uncompressed: every token lies in one f16 array. Its first routing turns it into tiers, after which the
// f16 array holds only what has not been routed yet. Only apply() moves bytes between tiers. One thread at a time,
// except that the score accumulators of different windows may be added to concurrently.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/half.h"
#include "cache/byte_meter.h"
#include "cache/layout.h"
#include "cache/routing_plan.h"
#include "cache/window_index.h"
#include "kernels/attention.h"

namespace qevict {

// Contiguous f16 tokens of one head, positions first_position ..., with one score each (empty if scores are not kept).
struct TokenView {
  std::span<const Half> keys;    // [n][key_dim], after RoPE
  std::span<const Half> values;  // [n][value_dim]
  std::span<const float> scores;
  std::int64_t first_position = 0;
  int n = 0;
  std::span<const float> value_ranges = {};  // [n][2] as TokenSide's; empty if the codec uses none
};

// Score of accumulators: their sum, or the sum of their power-th roots.
float sum_of_accumulators(std::span<const float> accumulators, int power);

class HeadCache {
 public:
  HeadCache(const CacheShape& shape, const LayoutRule& rule, const Rope& rope, ByteMeter& meter);

  // --- What it holds ---
  std::int64_t n_tokens() const { return tail_position_ + tail_size_; }  // seen so far, evicted ones included
  bool routed() const { return routed_; }
  const HeadLayout& layout() const { return layout_; }
  int full_windows() const { return full_index_.size(); }
  int quantized_windows() const { return code_index_.size(); }
  std::int64_t windows_routed() const { return routed_ ? next_window_ : 0; }  // ids below were routed, evicted included
  // Unrouted f16 tokens, oldest first: all tokens while uncompressed.
  TokenView tail() const;
  // Windows in a tier, ascending, with the sums of their accumulators (of the roots, if score_power says so).
  std::vector<Candidate> windows() const;

  // --- Attention ---
  // f16 tokens in the order of attention: sinks, full-precision windows, tail.
  int sink_tokens() const { return routed_ ? rule_.zones.sinks : 0; }
  int full_tokens() const { return full_index_.size() * rule_.zones.window; }
  int f16_tokens() const { return sink_tokens() + full_tokens() + tail_size_; }
  // Runs covering f16 tokens [begin, end) of that order, appended to `runs` (first_token as in HeadView).
  void append_runs(int begin, int end, std::vector<F16Run>& runs) const;
  // Windows of codes number [begin, end) in ascending order.
  void append_codes(int begin, int end, std::vector<CodeWindow>& codes) const;
  // For kernels; `f16` and `codes` are to be filled with the two calls above.
  HeadView view() const;

  // --- Scores ---
  // Accumulators, to be added to in place. REQUIRES: rule.scores.
  std::span<float> tail_scores();
  std::span<float> full_scores(int i);  // [accumulators] of the i-th full-precision window, ascending
  std::span<float> code_scores(int i);
  float& full_score(int i) { return full_scores(i).front(); }
  float& code_score(int i) { return code_scores(i).front(); }

  // --- Queries ---
  // The last query_rows() of them, oldest first, of the newest tokens.
  int query_rows() const { return queries_held_; }
  std::span<const Half> query(int row) const;  // [group][key_dim], after RoPE
  // Of the next token, [group][key_dim]. No-op where none are kept. May run beside reads of the rest.
  void push_query(const float* query);

  // --- Growth ---
  // Starts or stops keeping score accumulators; those started are 0. REQUIRES: !routed().
  void keep_scores(bool keep);
  // Starts or stops keeping the last queries. REQUIRES: !routed().
  void keep_queries(bool keep);
  // Room for `capacity` tokens in all while uncompressed, or in the tail once routed.
  void reserve_tail(int capacity);
  int tail_capacity() const { return tail_capacity_; }
  // Appends one token with score 0, rounding to f16 and saturating. REQUIRES: room. May run beside reads of other f16
  // tokens.
  void append(const float* key, const float* value);
  void append(std::span<const Half> keys, std::span<const Half> values, std::span<const float> scores, int n);

  // The codec's frozen parameters, known before any demotion; [head_bytes]. Not counted until there are codes.
  void use_head_data(std::vector<std::byte> data) { known_head_data_ = std::move(data); }

  // --- Routing ---
  // Carries out a plan made for windows() and the challengers in `tokens` (= tail(), or a prefill buffer that begins
  // with it), then keeps the rest of `tokens`, from keep_position on, as the new tail. The whole plan is checked, and
  // all codes are made, before the first byte moves: after an error the head is as it was. new_layout: capacities from
  // now on. weights: of the challengers, in order, if the rule keeps weights. Errors: a non-finite key or value, naming
  // the window.
  Result<void> apply(const RoutingPlan& plan, const TokenView& tokens, std::int64_t keep_position,
                     const HeadLayout& new_layout, std::span<const float> weights = {});

 private:
  struct Staged;
  Result<void> check(const RoutingPlan& plan, const TokenView& tokens, std::int64_t keep_position,
                     const HeadLayout& new_layout) const;
  Result<Staged> stage(const RoutingPlan& plan, const TokenView& tokens);
  TokenSide side_of(const TierMove& move, const TokenView& tokens) const;
  std::vector<std::byte> estimate_head(const RoutingPlan& plan, const TokenView& tokens) const;
  void move_windows(const RoutingPlan& plan, const TokenView& tokens, const Staged& staged,
                    std::span<const float> weights);
  void resize_tiers(int full_slots, int code_slots, std::size_t index_bytes);
  void keep_tail(const TokenView& tokens, std::int64_t keep_position, int capacity);
  void load_window(std::int64_t window, const Half* keys, const Half* values, std::span<float> k,
                   std::span<float> v) const;
  void take_sinks(const TokenView& tokens);
  void show_sinks();

  std::size_t key_count() const { return static_cast<std::size_t>(rule_.zones.window * shape_.key_dim); }
  std::size_t value_count() const { return static_cast<std::size_t>(rule_.zones.window * shape_.value_dim); }
  std::size_t score_floats() const { return rule_.window_floats(); }
  Half* full_keys(int slot) { return full_keys_.as<Half>() + static_cast<std::size_t>(slot) * key_count(); }
  Half* full_values(int slot) { return full_values_.as<Half>() + static_cast<std::size_t>(slot) * value_count(); }
  std::span<std::byte> record(int slot) {
    return {records_.data() + static_cast<std::size_t>(slot) * payload_, payload_};
  }
  std::span<std::byte> ledger(int slot) {
    return {ledger_.data() + static_cast<std::size_t>(slot) * payload_, payload_};
  }

  CacheShape shape_;
  LayoutRule rule_;
  const Rope* rope_;
  ByteMeter* meter_;
  std::size_t payload_;
  HeadLayout layout_;
  bool routed_ = false;
  bool pools_made_ = false;
  bool head_frozen_ = false;      // head_data_ holds the codec's parameters
  std::int64_t next_window_ = 0;  // first id not routed yet

  Buffer sink_keys_, sink_values_;  // [sinks][dim]
  Buffer shown_sink_keys_;          // as attention sees them, where that is not at their own positions

  Buffer queries_;  // [rule.query_rows][group][key_dim], a ring
  int query_next_ = 0, queries_held_ = 0;

  WindowIndex full_index_;
  Buffer full_keys_, full_values_;  // [full_slots][window][dim], keys after RoPE
  Buffer full_scores_;              // f32[full_slots][window_floats]
  Buffer ledger_;                   // [full_slots][payload]: codes of promoted windows (Ledger::kept)

  WindowIndex code_index_;
  Buffer records_;      // [quantized_slots][payload]
  Buffer code_scores_;  // f32[quantized_slots][window_floats]
  Buffer head_data_;    // the codec's frozen parameters
  std::vector<std::byte> known_head_data_;

  Buffer tail_keys_, tail_values_;  // [tail_capacity][dim], keys after RoPE
  Buffer tail_scores_;              // f32[tail_capacity]
  std::int64_t tail_position_ = 0;  // of its first token
  int tail_size_ = 0;
  int tail_capacity_ = 0;
};

}  // namespace qevict
