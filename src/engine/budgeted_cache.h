// A TieredCache that keeps to its byte budget: decides when to compress, and carries routing through rank, plan, apply.
//
// A sequence is a number of turns (prefill, then decode steps). While all tokens fit the budget in f16 with their
// accumulators nothing is compressed; if the budget holds everything that may come, no accumulators exist either.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/tiered_cache.h"
#include "engine/cache_settings.h"
#include "qevict/session.h"  // CacheReport
#include "ranking/expected.h"
#include "ranking/weights.h"

namespace qevict {

class BudgetedCache {
 public:
  // rope must outlive the cache.
  BudgetedCache(const CacheShape& shape, const CacheSettings& settings, const Rope& rope, int n_ctx);

  // Sets the budget for a turn of n_turn tokens and up to max_new decoded ones (-1: unknown). Errors: a budget that
  // leaves no window. On error nothing has changed.
  Result<void> begin_turn(int n_turn, int max_new);
  // Bytes the cache may take by the end of the turn begun: its budget, or all of the turn's tokens in f16 if that is
  // less.
  std::size_t turn_bytes(int n_turn) const;
  // What later rows of this layer's turn see besides their own tokens: compressed tiers. Empty while uncompressed.
  std::span<const HeadView> past(int layer);
  // Factor of each row's column sums as PrefillLayer counts rows: [tail + n_rows], or empty if all are 1.
  std::vector<float> row_weights(int n_rows) const;
  // Takes in one layer of the turn: `prefill` holds the head's tail followed by the turn's tokens, and their sums.
  Result<void> end_layer(int layer, int n_turn, const PrefillLayer& prefill);
  // After the last layer. Errors: as end_layer.
  Result<void> end_turn();

  // Makes room for one more token in every head; may have to compress.
  Result<void> begin_step();
  // After the step's scores were added: routes if the step is one of the interval's.
  Result<void> end_step();

  // Runs work on a team of threads, all at once; heads are routed on it. None: one thread.
  using Work = std::function<void(int thread, int n_threads)>;
  using Team = std::function<Result<void>(const Work& work)>;
  void use_team(Team team) { team_ = std::move(team); }

  // What the model knows: the factor of its logits, and values behind its output projection, for rankings and weights
  // that ask for them.
  void use_model(float attention_scale, ProjectedNorms norms) {
    attention_scale_ = attention_scale;
    projected_norms_ = std::move(norms);
  }

  // The codec's frozen parameters of every head, by layer then KV head, where they are known beforehand.
  void use_head_data(const std::function<std::vector<std::byte>(int layer, int kv_head)>& data_of) {
    for (int layer = 0; layer < tiers_.shape().n_layers; ++layer) {
      for (int h = 0; h < tiers_.shape().n_kv_heads; ++h) tiers_.head(layer, h).use_head_data(data_of(layer, h));
    }
  }

  TieredCache& tiers() { return tiers_; }
  const TieredCache& tiers() const { return tiers_; }
  float decay() const { return settings_.scores.decay; }
  // Accumulators exist: the method ranks by attention, and not everything fits.
  bool keeps_scores() const { return settings_.rule.scores && !turn_.everything_fits; }
  // They are fed by attention rows.
  bool follows_attention() const { return keeps_scores() && settings_.scores.kept && settings_.scores.attention; }
  // The heads keep their last queries, to be pushed to each.
  bool keeps_queries() const { return settings_.rule.query_rows > 0 && !turn_.everything_fits; }
  int score_power() const { return settings_.scores.power; }
  // Where the ranking goes by the queries of a prompt: they are to be added here, layer by layer. Null otherwise.
  QueryStatistics* query_statistics() { return follows_attention() && settings_.scores.expected ? &queries_ : nullptr; }
  std::int64_t n_tokens() const { return n_tokens_; }
  // Cache fields of the report; workspace and prefill peaks are the session's.
  CacheReport report() const;
  // Tells of a layer's uncompressed keys and values that stand beside the cache.
  void note_prefill(std::size_t layer_kv_bytes);

 private:
  // What a turn was promised; fixes the budget.
  struct Turn {
    BudgetBase base = BudgetBase::context;
    std::int64_t base_tokens = 0;   // what a ratio refers to; unused if base is `current`
    std::int64_t limit_tokens = 0;  // most tokens that may come
    bool everything_fits = true;    // the budget holds them all in f16: no routing, no accumulators
    int interval = 1;               // decode steps between routings
  };
  Turn turn_for(int n_turn, int max_new) const;
  std::size_t budget_bytes(const Turn& turn, std::int64_t n_tokens) const;  // C, not yet raised
  std::size_t head_budget(const Turn& turn, std::int64_t n_tokens) const;
  Result<HeadLayout> layout_for(const Turn& turn, std::int64_t n_tokens) const;
  std::int64_t tokens_to_hold(const Turn& turn, std::int64_t n_tokens) const;
  bool fits_uncompressed(std::int64_t n_tokens) const;
  void reserve(HeadCache& head, std::int64_t n_tokens) const;
  // One head on its way through rank, allocate, plan, apply.
  struct HeadRouting {
    int layer = 0;
    int kv_head = 0;
    TokenView tokens;            // its unrouted tokens, all of them up to now
    bool anew = true;            // false: routed before in this event, its scores stand
    std::vector<float> scores;   // what tokens.scores points to, where the ranking makes them here
    std::vector<float> norms;    // of the challengers' tokens, where values weigh
    std::vector<float> weights;  // of the challengers
    Observation observation;     // until the layer's other heads are observed too
    std::int64_t left = 0;       // first window that stays unrouted
    std::vector<Candidate> candidates;
    HeadLayout layout;
    std::int64_t promotions = 0, demotions = 0, evictions = 0;  // what applying its plan did
    double ranking_ms = 0, migration_ms = 0;                    // CPU time
  };
  HeadRouting routing_of(int layer, int kv_head, const TokenView& tokens) const;
  std::vector<float> expected_scores(int kv_head, const PrefillLayer& prefill) const;
  std::vector<float> take_sums(HeadCache& head, int kv_head, int n_turn, const PrefillLayer& prefill) const;
  Result<void> route_layer(int layer, std::span<const TokenView> tokens);
  Result<void> route_heads(std::vector<HeadRouting> heads, const HeadLayout& layout);
  Result<void> take_norms(std::span<HeadRouting> heads, const HeadLayout& layout) const;
  std::vector<std::vector<float>> take_value_ranges(std::span<HeadRouting> heads, const HeadLayout& layout) const;
  std::int64_t windows_left(const HeadRouting& head, const HeadLayout& layout) const;
  struct TokenSpan {
    std::size_t begin = 0;  // of HeadRouting::tokens
    std::size_t n = 0;
  };
  TokenSpan challengers(const HeadRouting& head, const HeadLayout& layout) const;
  Result<void> rank(HeadRouting& head, const HeadLayout& layout) const;
  void weigh(HeadRouting& head) const;
  void look_anew(HeadRouting& head, const HeadLayout& layout) const;
  void force_windows(std::span<HeadRouting> heads, const HeadLayout& layout) const;
  void finish_layer(std::span<HeadRouting> heads, const HeadLayout& layout) const;
  std::vector<std::size_t> share_bytes(std::span<const HeadRouting> heads, const HeadLayout& layout,
                                       const SpendingRule& rule) const;
  SpendingRule rule_for(const HeadLayout& layout) const;
  void grow(std::span<HeadRouting> heads, const HeadLayout& layout, std::size_t more) const;
  void lay_out(std::span<HeadRouting> heads, const HeadLayout& layout) const;
  Result<void> plan_and_apply(HeadRouting& head);
  Result<void> on_all(std::span<HeadRouting> heads, const std::function<Result<void>(HeadRouting&)>& work);
  std::vector<HeadRouting> tails() const;
  Result<void> route_all();
  void note_bytes();

  CacheSettings settings_;
  int n_ctx_;
  TieredCache tiers_;
  Turn turn_;
  bool routed_ = false;  // some head is (then all are, or will be when the current turn ends)
  std::int64_t n_tokens_ = 0;
  std::int64_t turn_steps_ = 0;  // decode steps since the last prefill
  std::int64_t event_ = 0;       // of the next routing
  HeadLayout turn_layout_;       // of the routing at the current turn's end

  std::vector<std::vector<F16Run>> past_runs_;  // [n_kv_heads], what past_ points to
  std::vector<std::vector<CodeWindow>> past_codes_;
  std::vector<HeadView> past_;
  QueryStatistics queries_;
  Team team_;
  float attention_scale_ = 1;
  ProjectedNorms projected_norms_;
  CacheReport totals_;                                // counters and peaks so far
  double ranking_cpu_ms_ = 0, migration_cpu_ms_ = 0;  // of all threads, prefill included
  double bytes_sum_ = 0;
  double full_bytes_sum_ = 0;
};

}  // namespace qevict
