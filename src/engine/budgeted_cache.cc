#include "engine/budgeted_cache.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/clock.h"
#include "ranking/probes.h"
#include "routing/allocator.h"

namespace qevict {
BudgetedCache::BudgetedCache(const CacheShape& shape, const CacheSettings& settings, const Rope& rope, int n_ctx)
    : settings_(settings), n_ctx_(n_ctx), tiers_(shape, settings.rule, rope) {}

// --- Budget --------------------------------------------------------------------------------------------------------

std::size_t BudgetedCache::budget_bytes(const Turn& turn, std::int64_t n_tokens) const {
  if (settings_.budget.bytes) return *settings_.budget.bytes;
  if (turn.base == BudgetBase::prompt) {
    const auto interval = static_cast<std::size_t>(turn.interval);
    return ratio_of(settings_.budget.ratio.value_or(kDefaultBudgetRatio), tiers_.shape().full_bytes(turn.base_tokens)) +
           interval * tiers_.shape().heads() * (tiers_.shape().token_bytes() + settings_.rule.score_bytes());
  }
  return ratio_of(settings_.budget.ratio.value_or(kDefaultBudgetRatio),
                  tiers_.shape().full_bytes(turn.base == BudgetBase::current ? n_tokens : turn.base_tokens));
}

Result<HeadLayout> BudgetedCache::layout_for(const Turn& turn, std::int64_t n_tokens) const {
  const Raise raise = settings_.budget.bytes             ? Raise::never
                      : turn.base == BudgetBase::current ? Raise::always
                                                         : Raise::automatic_recent;
  LayoutRule rule = settings_.rule;
  rule.interval = turn.interval;
  if (rule.everything) return plan_everything(tiers_.shape(), rule, settings_.recent, tokens_to_hold(turn, n_tokens));
  const std::size_t bytes = budget_bytes(turn, n_tokens);
  return plan_layout(tiers_.shape(), rule, settings_.recent, bytes / tiers_.shape().heads(), raise, bytes);
}

// What is promised, or where that is not known a little more than there is.
std::int64_t BudgetedCache::tokens_to_hold(const Turn& turn, std::int64_t n_tokens) const {
  if (turn.limit_tokens < n_ctx_) return turn.limit_tokens;
  constexpr std::int64_t kStep = 256;  // so that pools do not grow at every routing
  return std::min(turn.limit_tokens, (n_tokens / kStep + 1) * kStep);
}

// C_h in force: raised to the smallest workable budget where that is allowed.
std::size_t BudgetedCache::head_budget(const Turn& turn, std::int64_t n_tokens) const {
  const Result<HeadLayout> layout = layout_for(turn, n_tokens);
  return layout ? layout->budget_bytes : budget_bytes(turn, n_tokens) / tiers_.shape().heads();
}

BudgetedCache::Turn BudgetedCache::turn_for(int n_turn, int max_new) const {
  Turn turn;
  const std::int64_t known = n_tokens_ + n_turn + std::max(max_new, 0);
  turn.limit_tokens = max_new < 0 ? n_ctx_ : std::min<std::int64_t>(n_ctx_, known);
  if (settings_.budget_base) {
    turn.base = *settings_.budget_base;
  } else if (!settings_.method->compresses) {
    turn.base = max_new < 0 ? BudgetBase::context : BudgetBase::request;
  } else if (settings_.budget.ratio) {
    turn.base = max_new < 0 ? BudgetBase::current : BudgetBase::request;
  }
  turn.base_tokens = turn.base == BudgetBase::request  ? turn.limit_tokens
                     : turn.base == BudgetBase::prompt ? n_tokens_ + n_turn
                                                       : n_ctx_;
  turn.interval = settings_.rule.interval;
  if (turn.base == BudgetBase::prompt) turn.interval = static_cast<int>(turn.limit_tokens - turn.base_tokens) + 1;
  const std::size_t everything = tiers_.shape().full_bytes(turn.limit_tokens);
  turn.everything_fits =
      !settings_.method->compresses ||
      (!settings_.rule.everything && !routed_ &&
       (turn.base == BudgetBase::current && !settings_.budget.bytes
            ? settings_.budget.ratio.value_or(kDefaultBudgetRatio) >= 1.0
            : std::max(budget_bytes(turn, 0), head_budget(turn, 0) * tiers_.shape().heads()) >= everything));
  return turn;
}

bool BudgetedCache::fits_uncompressed(std::int64_t n_tokens) const {
  if (turn_.everything_fits) return true;
  if (settings_.rule.everything) return turn_layout_.zones.windows_left(static_cast<int>(n_tokens)) == 0;
  return turn_.base != BudgetBase::prompt &&
         uncompressed_head_bytes(tiers_.shape(), settings_.rule, n_tokens) <= head_budget(turn_, n_tokens);
}

// Room for n_tokens in an uncompressed head: exactly what is promised, or a little more where that is not known; never
// above the budget.
void BudgetedCache::reserve(HeadCache& head, std::int64_t n_tokens) const {
  if (head.tail_capacity() >= n_tokens) return;
  const bool known = turn_.limit_tokens < n_ctx_;
  std::int64_t capacity =
      known ? turn_.limit_tokens
            : std::min<std::int64_t>(turn_.limit_tokens, n_tokens + std::max<std::int64_t>(64, n_tokens / 4));
  if (!turn_.everything_fits) {
    const std::size_t none = uncompressed_head_bytes(tiers_.shape(), settings_.rule, 0);
    const std::size_t token_bytes = uncompressed_head_bytes(tiers_.shape(), settings_.rule, 1) - none;
    const std::size_t budget = head_budget(turn_, n_tokens);
    capacity = std::min(capacity, static_cast<std::int64_t>((budget - std::min(budget, none)) / token_bytes));
  }
  head.reserve_tail(static_cast<int>(std::max(capacity, n_tokens)));
}

// --- Turns ---------------------------------------------------------------------------------------------------------

Result<void> BudgetedCache::begin_turn(int n_turn, int max_new) {
  if (settings_.budget_base == BudgetBase::prompt && max_new < 0)
    return invalid("a KV budget of the prompt keeps new tokens whole: say how many may come (max_new)");
  const Turn turn = turn_for(n_turn, max_new);
  if (!turn.everything_fits) {
    Result<HeadLayout> layout = layout_for(turn, n_tokens_ + n_turn);
    if (!layout) return layout.error();
    turn_layout_ = *layout;
  }
  turn_ = turn;
  if (!routed_) {
    for (HeadCache& head : tiers_.heads()) {
      head.keep_scores(keeps_scores());
      head.keep_queries(keeps_queries());
    }
  }
  return {};
}

std::size_t BudgetedCache::turn_bytes(int n_turn) const {
  const std::int64_t n_after = n_tokens_ + n_turn;
  const std::size_t everything = tiers_.shape().full_bytes(n_after);
  return turn_.everything_fits ? everything
                               : std::min(everything, head_budget(turn_, n_after) * tiers_.shape().heads());
}

std::span<const HeadView> BudgetedCache::past(int layer) {
  if (!routed_) return {};
  const auto n_kv_heads = static_cast<std::size_t>(tiers_.shape().n_kv_heads);
  past_.clear();
  past_runs_.assign(n_kv_heads, {});
  past_codes_.assign(n_kv_heads, {});
  for (std::size_t h = 0; h < n_kv_heads; ++h) {
    const HeadCache& head = tiers_.head(layer, static_cast<int>(h));
    head.append_runs(0, head.sink_tokens() + head.full_tokens(), past_runs_[h]);
    head.append_codes(0, head.quantized_windows(), past_codes_[h]);
    past_.push_back(head.view());
    past_.back().f16 = past_runs_[h];
    past_.back().codes = past_codes_[h];
  }
  return past_;
}

std::vector<float> BudgetedCache::row_weights(int n_rows) const {
  if (!follows_attention() || settings_.scores.uniform()) return {};
  const int tail = tiers_.heads().front().tail().n;
  std::vector<float> weights(static_cast<std::size_t>(tail + n_rows));
  std::ranges::copy(settings_.scores.row_weights(n_rows), weights.begin() + tail);
  return weights;
}

// The scores of a head's tail and of the turn's tokens; adds what the turn's rows gave to the tiers.
std::vector<float> BudgetedCache::take_sums(HeadCache& head, int kv_head, int n_turn,
                                            const PrefillLayer& prefill) const {
  if (!keeps_scores()) return {};
  if (!follows_attention()) return std::vector<float>(static_cast<std::size_t>(prefill.size()));
  const int window = settings_.rule.zones.window;
  const float kept = static_cast<float>(std::pow(static_cast<double>(decay()), n_turn));
  std::vector<float> scores(static_cast<std::size_t>(prefill.size()));
  std::vector<float> past_f16(head.routed() ? static_cast<std::size_t>(head.sink_tokens() + head.full_tokens()) : 0);
  std::vector<float> past_codes(static_cast<std::size_t>(head.quantized_windows() * window));
  prefill.column_sums(kv_head, scores, past_f16, past_codes);
  if (settings_.scores.expected && n_tokens_ == 0) return expected_scores(kv_head, prefill);
  if (settings_.scores.probes)
    divide_by_probes(settings_.scores.row_weights(n_turn), std::span(scores).last(static_cast<std::size_t>(n_turn)));
  const std::span<const float> old = head.tail().scores;
  for (std::size_t i = 0; i < old.size(); ++i) scores[i] += kept * old[i];
  const auto add = [&](std::span<float> accumulators, std::span<const float> sums) {
    for (float& a : accumulators) a *= kept;
    for (std::size_t i = 0; i < sums.size(); ++i) accumulators[accumulators.size() == 1 ? 0 : i] += sums[i];
  };
  for (int i = 0; i < head.full_windows(); ++i) {
    const auto at = static_cast<std::size_t>(head.sink_tokens() + i * window);
    add(head.full_scores(i), std::span(past_f16).subspan(at, static_cast<std::size_t>(window)));
  }
  for (int i = 0; i < head.quantized_windows(); ++i) {
    add(head.code_scores(i),
        std::span(past_codes).subspan(static_cast<std::size_t>(i * window), static_cast<std::size_t>(window)));
  }
  return scores;
}

// Expected probabilities, times the mass that accumulators hold when every row gives one unit of it.
std::vector<float> BudgetedCache::expected_scores(int kv_head, const PrefillLayer& prefill) const {
  const auto n = static_cast<std::size_t>(prefill.size());
  const auto dim = static_cast<std::size_t>(tiers_.shape().key_dim);
  std::vector<float> scores =
      queries_.probabilities(kv_head, queries_.n_heads() / tiers_.shape().n_kv_heads, {prefill.keys(kv_head), n * dim},
                             settings_.rule.zones.sinks, tiers_.rope());
  const double decay_rate = static_cast<double>(decay());
  const double mass = decay_rate == 1 ? static_cast<double>(n) : (1 - std::pow(decay_rate, n)) / (1 - decay_rate);
  for (float& score : scores) score *= static_cast<float>(mass);
  return scores;
}

Result<void> BudgetedCache::end_layer(int layer, int n_turn, const PrefillLayer& prefill) {
  const std::int64_t n_after = n_tokens_ + n_turn;
  const auto key_dim = static_cast<std::size_t>(tiers_.shape().key_dim);
  const auto value_dim = static_cast<std::size_t>(tiers_.shape().value_dim);
  std::vector<std::vector<float>> scores;  // what the views below point to
  std::vector<TokenView> tokens;
  for (int h = 0; h < tiers_.shape().n_kv_heads; ++h) {
    const auto n = static_cast<std::size_t>(prefill.size());
    scores.push_back(take_sums(tiers_.head(layer, h), h, n_turn, prefill));
    tokens.push_back({.keys = {prefill.keys(h), n * key_dim},
                      .values = {prefill.values(h), n * value_dim},
                      .scores = scores.back(),
                      .first_position = n_after - prefill.size(),
                      .n = prefill.size()});
  }
  if (routed_ || !fits_uncompressed(n_after)) return route_layer(layer, tokens);
  for (int h = 0; h < tiers_.shape().n_kv_heads; ++h) {
    HeadCache& head = tiers_.head(layer, h);
    const TokenView& view = tokens[static_cast<std::size_t>(h)];
    const auto skip = static_cast<std::size_t>(head.tail().n);
    reserve(head, n_after);
    if (keeps_scores()) std::copy_n(view.scores.begin(), skip, head.tail_scores().begin());
    head.append(view.keys.subspan(skip * key_dim), view.values.subspan(skip * value_dim),
                keeps_scores() ? view.scores.subspan(skip) : std::span<const float>{}, n_turn);
  }
  return {};
}

// The routing at the end of a layer's prefill. Where all layers compete, those before it lose to it what it is worth
// more: a window beaten by the best that the budget holds can never return, so the outcome is that of all layers at
// once, and the peak is the budget and one layer (qevict.md section 5). In a later turn the layers after it have not
// been attended to yet, so that they keep theirs until end_turn().
Result<void> BudgetedCache::route_layer(int layer, std::span<const TokenView> tokens) {
  std::vector<HeadRouting> heads;
  const bool streams =
      settings_.allocator->scope == Scope::model && settings_.allocator->sharing == Sharing::bids && !routed_;
  for (int before = 0; streams && before < layer; ++before) {
    for (int h = 0; h < tiers_.shape().n_kv_heads; ++h) {
      heads.push_back(routing_of(before, h, tiers_.head(before, h).tail()));
      heads.back().anew = false;
    }
  }
  for (int h = 0; h < tiers_.shape().n_kv_heads; ++h)
    heads.push_back(routing_of(layer, h, tokens[static_cast<std::size_t>(h)]));
  return route_heads(std::move(heads), turn_layout_);
}

Result<void> BudgetedCache::end_turn() {
  const HeadCache& first = tiers_.heads().front();
  n_tokens_ = first.n_tokens();
  turn_steps_ = 0;
  if (first.routed()) {
    if (routed_ && settings_.allocator->scope == Scope::model) {
      if (Result<void> routed = route_heads(tails(), turn_layout_); !routed) return routed;
    }
    routed_ = true;
    ++event_;
    ++totals_.routings;
  }
  note_bytes();
  totals_.bytes_prefill_end = tiers_.bytes().total();
  return {};
}

// Every head with its tail.
std::vector<BudgetedCache::HeadRouting> BudgetedCache::tails() const {
  std::vector<HeadRouting> heads;
  for (int layer = 0; layer < tiers_.shape().n_layers; ++layer) {
    for (int h = 0; h < tiers_.shape().n_kv_heads; ++h)
      heads.push_back(routing_of(layer, h, tiers_.head(layer, h).tail()));
  }
  return heads;
}

// --- Decode --------------------------------------------------------------------------------------------------------

Result<void> BudgetedCache::begin_step() {
  if (routed_) return {};
  if (settings_.method->compresses && turn_.everything_fits && n_tokens_ >= turn_.limit_tokens) {
    return invalid(
        "the prompt and max_new promised {} tokens, which the KV budget holds whole; feed more with a larger max_new",
        turn_.limit_tokens);
  }
  if (!fits_uncompressed(n_tokens_ + 1)) return route_all();
  for (HeadCache& head : tiers_.heads()) reserve(head, n_tokens_ + 1);
  return {};
}

Result<void> BudgetedCache::end_step() {
  ++n_tokens_;
  ++turn_steps_;
  ++totals_.steps;
  if (routed_ && turn_steps_ % turn_.interval == 0) {
    if (Result<void> routed = route_all(); !routed) return routed;
  }
  note_bytes();
  bytes_sum_ += static_cast<double>(tiers_.bytes().total());
  full_bytes_sum_ += static_cast<double>(tiers_.shape().full_bytes(n_tokens_));
  return {};
}

Result<void> BudgetedCache::route_all() {
  const Clock::time_point start = Clock::now();
  const double migration_before = migration_cpu_ms_, ranking_before = ranking_cpu_ms_;
  Result<HeadLayout> layout = layout_for(turn_, n_tokens_);
  if (!layout) return layout.error();
  if (Result<void> routed = route_heads(tails(), *layout); !routed) return routed;
  routed_ = true;
  ++event_;
  ++totals_.routings;
  const double passed = ms_since(start);
  const double migration = migration_cpu_ms_ - migration_before, ranking = ranking_cpu_ms_ - ranking_before;
  const double share = migration + ranking > 0 ? migration / (migration + ranking) : 0;
  totals_.migration_ms += passed * share;
  totals_.routing_ms += passed * (1 - share);
  return {};
}

// --- Report --------------------------------------------------------------------------------------------------------

void BudgetedCache::note_bytes() {
  const std::size_t now = tiers_.bytes().total();
  totals_.bytes_peak = std::max(totals_.bytes_peak, now);
  if (!turn_.everything_fits) {
    QEVICT_CHECK(now <= head_budget(turn_, n_tokens_) * tiers_.shape().heads(), "the cache never outgrows its budget");
  }
}

void BudgetedCache::note_prefill(std::size_t layer_kv_bytes) {
  totals_.prefill_kv_peak = std::max(totals_.prefill_kv_peak, layer_kv_bytes + tiers_.bytes().total());
}

CacheReport BudgetedCache::report() const {
  CacheReport report = totals_;
  const CacheShape& shape = tiers_.shape();
  report.base_tokens = turn_.base == BudgetBase::current ? n_tokens_
                       : settings_.budget.bytes || turn_.base == BudgetBase::prompt || settings_.rule.everything
                           ? turn_.limit_tokens
                           : turn_.base_tokens;
  report.bytes_full = shape.full_bytes(report.base_tokens);
  if (settings_.rule.everything) {
    report.budget_bytes = report.budget_effective = head_budget(turn_, n_tokens_) * shape.heads();
  } else if (settings_.method->compresses) {
    report.budget_bytes = budget_bytes(turn_, n_tokens_);
    std::size_t in_force = head_budget(turn_, n_tokens_) * shape.heads();
    if (turn_.everything_fits) in_force = std::min(in_force, shape.full_bytes(turn_.limit_tokens));  // uncompressed
    report.budget_effective = std::max(report.budget_bytes, in_force);
  } else {
    report.budget_bytes = report.budget_effective = report.bytes_full;
  }
  report.bytes = tiers_.bytes();
  report.ratio_peak =
      report.bytes_full > 0 ? static_cast<double>(report.bytes_peak) / static_cast<double>(report.bytes_full) : 0;
  report.ratio_mean = full_bytes_sum_ > 0 ? bytes_sum_ / full_bytes_sum_ : 0;
  report.compressing = routed_;
  if (!routed_) return report;
  report.recent_tokens = tiers_.heads().front().layout().zones.recent;
  std::int64_t full_slots = 0, quantized_slots = 0;
  for (const HeadCache& head : tiers_.heads()) {
    full_slots += head.layout().full_slots;
    quantized_slots += head.layout().quantized_slots;
    report.windows_full += head.full_windows();
    report.windows_quantized += head.quantized_windows();
    report.windows_evicted += head.windows_routed() - head.full_windows() - head.quantized_windows();
  }
  report.full_slots = static_cast<int>(full_slots / static_cast<std::int64_t>(shape.heads()));
  report.quantized_slots = static_cast<int>(quantized_slots / static_cast<std::int64_t>(shape.heads()));
  report.tokens_evicted = report.windows_evicted * settings_.rule.zones.window;
  return report;
}

}  // namespace qevict
