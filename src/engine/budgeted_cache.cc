#include "engine/budgeted_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>

#include "base/check.h"
#include "routing/router.h"
#include "routing/spending.h"

namespace qevict {
namespace {

// Share of a window's worth that 3-bit keys and 2-bit values lose, for Spending::by_gain (docs/design.md, with the
// sweep).
constexpr double kQuantizationLoss = 0.2;

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

BudgetedCache::BudgetedCache(const CacheShape& shape, const CacheSettings& settings, const Rope& rope, int n_ctx)
    : settings_(settings), n_ctx_(n_ctx), tiers_(shape, settings.rule, rope) {}

// --- Budget --------------------------------------------------------------------------------------------------------

std::size_t BudgetedCache::budget_bytes(const Turn& turn, std::int64_t n_tokens) const {
  if (settings_.budget.bytes) return *settings_.budget.bytes;
  return ratio_of(settings_.budget.ratio.value_or(kDefaultBudgetRatio),
                  tiers_.shape().full_bytes(turn.base == BudgetBase::current ? n_tokens : turn.base_tokens));
}

Result<HeadLayout> BudgetedCache::layout_for(const Turn& turn, std::int64_t n_tokens) const {
  const Raise raise = settings_.budget.bytes             ? Raise::never
                      : turn.base == BudgetBase::current ? Raise::always
                                                         : Raise::automatic_recent;
  return plan_layout(tiers_.shape(), settings_.rule, settings_.recent,
                     budget_bytes(turn, n_tokens) / tiers_.shape().heads(), raise);
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
  turn.base_tokens = turn.base == BudgetBase::request ? turn.limit_tokens : n_ctx_;
  const std::size_t everything = tiers_.shape().full_bytes(turn.limit_tokens);
  turn.everything_fits = !settings_.method->compresses ||
                         (!routed_ && (turn.base == BudgetBase::current && !settings_.budget.bytes
                                           ? settings_.budget.ratio.value_or(kDefaultBudgetRatio) >= 1.0
                                           : std::max(budget_bytes(turn, 0),
                                                      head_budget(turn, 0) * tiers_.shape().heads()) >= everything));
  return turn;
}

bool BudgetedCache::fits_uncompressed(std::int64_t n_tokens) const {
  return turn_.everything_fits ||
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
    const std::size_t token_bytes = uncompressed_head_bytes(tiers_.shape(), settings_.rule, 1);
    capacity = std::min<std::int64_t>(capacity, static_cast<std::int64_t>(head_budget(turn_, n_tokens) / token_bytes));
  }
  head.reserve_tail(static_cast<int>(std::max(capacity, n_tokens)));
}

// --- Turns ---------------------------------------------------------------------------------------------------------

Result<void> BudgetedCache::begin_turn(int n_turn, int max_new) {
  const Turn turn = turn_for(n_turn, max_new);
  if (!turn.everything_fits) {
    Result<HeadLayout> layout = layout_for(turn, n_tokens_ + n_turn);
    if (!layout) return layout.error();
    turn_layout_ = *layout;
  }
  turn_ = turn;
  if (!routed_) {
    for (HeadCache& head : tiers_.heads()) head.keep_scores(keeps_scores());
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
  if (!keeps_scores() || settings_.ranking->rule.uniform()) return {};
  const int tail = tiers_.heads().front().tail().n;
  std::vector<float> weights(static_cast<std::size_t>(tail + n_rows));
  for (int row = 0; row < n_rows; ++row) {
    weights[static_cast<std::size_t>(tail + row)] = settings_.ranking->rule.row_weight(row, n_rows);
  }
  return weights;
}

Result<void> BudgetedCache::end_layer(int layer, int n_turn, const PrefillLayer& prefill) {
  const std::int64_t n_after = n_tokens_ + n_turn;
  const bool fits = !routed_ && fits_uncompressed(n_after);
  const float kept = static_cast<float>(std::pow(static_cast<double>(decay()), n_turn));
  const int window = settings_.rule.zones.window;
  for (int h = 0; h < tiers_.shape().n_kv_heads; ++h) {
    HeadCache& head = tiers_.head(layer, h);
    const int tail_size = head.tail().n;
    const auto n = static_cast<std::size_t>(prefill.size());
    std::vector<float> scores(keeps_scores() ? n : 0);
    if (keeps_scores()) {
      std::vector<float> past_f16(static_cast<std::size_t>(head.sink_tokens() + head.full_tokens()));
      std::vector<float> past_codes(static_cast<std::size_t>(head.quantized_windows() * window));
      if (!routed_) past_f16.clear();
      prefill.column_sums(h, scores, past_f16, past_codes);
      const std::span<const float> old = head.tail().scores;
      for (int i = 0; i < tail_size; ++i)
        scores[static_cast<std::size_t>(i)] += kept * old[static_cast<std::size_t>(i)];
      const auto add = [&](float& score, std::span<const float> sums) {
        score *= kept;
        for (const float sum : sums) score += sum;
      };
      for (int i = 0; i < head.full_windows(); ++i) {
        const auto at = static_cast<std::size_t>(head.sink_tokens() + i * window);
        add(head.full_score(i), std::span(past_f16).subspan(at, static_cast<std::size_t>(window)));
      }
      for (int i = 0; i < head.quantized_windows(); ++i) {
        add(head.code_score(i),
            std::span(past_codes).subspan(static_cast<std::size_t>(i * window), static_cast<std::size_t>(window)));
      }
    }
    const auto key_dim = static_cast<std::size_t>(tiers_.shape().key_dim);
    const auto value_dim = static_cast<std::size_t>(tiers_.shape().value_dim);
    const TokenView tokens{.keys = {prefill.keys(h), n * key_dim},
                           .values = {prefill.values(h), n * value_dim},
                           .scores = scores,
                           .first_position = n_after - prefill.size(),
                           .n = prefill.size()};
    if (fits) {
      reserve(head, n_after);
      const auto skip = static_cast<std::size_t>(tail_size);
      if (keeps_scores()) std::copy_n(scores.begin(), skip, head.tail_scores().begin());
      head.append(tokens.keys.subspan(skip * key_dim), tokens.values.subspan(skip * value_dim),
                  keeps_scores() ? std::span<const float>(scores).subspan(skip) : std::span<const float>{}, n_turn);
    } else {
      Moves moves;
      if (Result<void> routed = route_head(layer, h, tokens, turn_layout_, moves); !routed) return routed;
      note(moves);
    }
  }
  return {};
}

void BudgetedCache::end_turn() {
  const HeadCache& first = tiers_.heads().front();
  n_tokens_ = first.n_tokens();
  if (first.routed()) {
    routed_ = true;
    ++event_;
    ++totals_.routings;
  }
  turn_steps_ = 0;
  note_bytes();
  totals_.bytes_prefill_end = tiers_.bytes().total();
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
  if (routed_ && turn_steps_ % settings_.rule.interval == 0) {
    if (Result<void> routed = route_all(); !routed) return routed;
  }
  note_bytes();
  bytes_sum_ += static_cast<double>(tiers_.bytes().total());
  full_bytes_sum_ += static_cast<double>(tiers_.shape().full_bytes(n_tokens_));
  return {};
}

Result<void> BudgetedCache::route_all() {
  const Clock::time_point start = Clock::now();
  Result<HeadLayout> layout = layout_for(turn_, n_tokens_);
  if (!layout) return layout.error();
  // Heads know nothing of each other, so it does not matter which thread routes one.
  struct Head {
    Result<void> result;
    Moves moves;
    double ms = 0;
    std::exception_ptr bug;
  };
  std::vector<Head> heads(tiers_.heads().size());
  const auto n_kv_heads = static_cast<std::size_t>(tiers_.shape().n_kv_heads);
  std::atomic<std::size_t> next = 0;
  const Work work = [&](int, int) {
    for (std::size_t i = next++; i < heads.size(); i = next++) {
      const Clock::time_point head_start = Clock::now();
      try {
        heads[i].result = route_head(static_cast<int>(i / n_kv_heads), static_cast<int>(i % n_kv_heads),
                                     tiers_.heads()[i].tail(), *layout, heads[i].moves);
      } catch (...) {
        heads[i].bug = std::current_exception();
      }
      heads[i].ms = ms_since(head_start);
    }
  };
  if (team_) {
    if (Result<void> worked = team_(work); !worked) return worked;
  } else {
    work(0, 1);
  }
  double all_ms = 0, migration_ms = 0;
  for (const Head& head : heads) {
    if (head.bug) std::rethrow_exception(head.bug);
    if (!head.result) return head.result;
    note(head.moves);
    all_ms += head.ms;
    migration_ms += head.moves.migration_ms;
  }
  routed_ = true;
  ++event_;
  ++totals_.routings;
  const double passed = ms_since(start);
  const double migration_share = all_ms > 0 ? migration_ms / all_ms : 0;
  totals_.migration_ms += passed * migration_share;
  totals_.routing_ms += passed * (1 - migration_share);
  return {};
}

void BudgetedCache::note(const Moves& moves) {
  totals_.promotions += moves.promotions;
  totals_.demotions += moves.demotions;
  totals_.evictions += moves.evictions;
}

// The layout with the head's own split of its history bytes, where the method asks for that. The split is made anew at
// the end of a turn and every kSplitEvents routings: what is bought at full precision must stay for a while to be worth
// it.
HeadLayout BudgetedCache::spend(const HeadCache& head, std::span<const Candidate> candidates, HeadLayout layout) const {
  constexpr std::int64_t kSplitEvents = 8;
  if (settings_.spending == Spending::fixed_share) return layout;
  const bool between = head.routed() && turn_steps_ > 0 && turn_steps_ % (kSplitEvents * settings_.rule.interval) != 0;
  if (between && head.layout().allocated_bytes() <= layout.budget_bytes) {
    layout.full_slots = head.layout().full_slots;
    layout.quantized_slots = head.layout().quantized_slots;
    layout.index_bytes = head.layout().index_bytes;
    return layout;
  }
  const TierCapacity split = spend_by_gain(candidates,
                                           {.history_bytes = layout.budget_bytes - layout.fixed_bytes,
                                            .full_slot_bytes = layout.full_slot_bytes,
                                            .quantized_slot_bytes = layout.quantized_slot_bytes},
                                           kQuantizationLoss);
  layout.full_slots = split.full;
  layout.quantized_slots = split.quantized;
  return layout;
}

// Rank, plan, apply for one head. tokens: its unrouted tokens, all of them up to now. Changes nothing but the head:
// several may be routed at once.
Result<void> BudgetedCache::route_head(int layer, int kv_head, const TokenView& tokens, const HeadLayout& layout,
                                       Moves& moves) {
  HeadCache& head = tiers_.head(layer, kv_head);
  const Zones& zones = layout.zones;
  const std::int64_t n_tokens = tokens.first_position + tokens.n;
  const std::int64_t next = head.windows_routed();
  const std::int64_t left = std::max<std::int64_t>(next, zones.windows_left(static_cast<int>(n_tokens)));
  std::vector<Candidate> candidates = head.windows();
  for (std::int64_t window = next; window < left; ++window) {
    float score = 0;
    if (!tokens.scores.empty()) {
      const auto at = static_cast<std::size_t>(zones.first_position(static_cast<int>(window)) - tokens.first_position);
      for (const float s : tokens.scores.subspan(at, static_cast<std::size_t>(zones.window))) score += s;
    }
    candidates.push_back({.window = window, .tier = Tier::none, .score = score});
  }
  if (settings_.ranking->score != nullptr) settings_.ranking->score(candidates);
  for (const Candidate& candidate : candidates) {
    if (!std::isfinite(candidate.score)) {
      return error_of(Error::Kind::internal, "layer {}, KV head {}: the attention score of window {} is not finite",
                      layer, kv_head, candidate.window);
    }
  }
  const HeadLayout chosen = spend(head, candidates, layout);
  const RoutingPlan plan =
      route(event_, candidates,
            {.full = chosen.full_slots, .quantized = chosen.quantized_slots, .promotion = settings_.promotion});
  for (const TierMove& move : plan.moves) {
    moves.promotions += move.from == Tier::quantized && move.to == Tier::full;
    moves.demotions += move.to == Tier::quantized;
    moves.evictions += move.to == Tier::evicted;
  }
  const std::int64_t keep =
      std::max(tokens.first_position, static_cast<std::int64_t>(zones.first_position(static_cast<int>(left))));
  const Clock::time_point start = Clock::now();
  const Result<void> applied = head.apply(plan, tokens, keep, chosen);
  moves.migration_ms = ms_since(start);
  if (!applied) {
    Error error = applied.error();
    error.message = fmt::format("layer {}, KV head {}: {}", layer, kv_head, error.message);
    return error;
  }
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
                       : settings_.budget.bytes          ? turn_.limit_tokens
                                                         : turn_.base_tokens;
  report.bytes_full = shape.full_bytes(report.base_tokens);
  if (settings_.method->compresses) {
    report.budget_bytes = budget_bytes(turn_, n_tokens_);
    report.budget_effective = std::max(report.budget_bytes, head_budget(turn_, n_tokens_) * shape.heads());
  } else {
    report.budget_bytes = report.budget_effective = report.bytes_full;
  }
  report.bytes = tiers_.bytes();
  report.ratio_peak =
      report.bytes_full > 0 ? static_cast<double>(report.bytes_peak) / static_cast<double>(report.bytes_full) : 0;
  report.ratio_mean = full_bytes_sum_ > 0 ? bytes_sum_ / full_bytes_sum_ : 0;
  report.compressing = routed_;
  if (!routed_) return report;
  const HeadLayout& layout = tiers_.heads().front().layout();
  report.recent_tokens = layout.zones.recent;
  report.full_slots = layout.full_slots;
  report.quantized_slots = layout.quantized_slots;
  for (const HeadCache& head : tiers_.heads()) {
    report.windows_full += head.full_windows();
    report.windows_quantized += head.quantized_windows();
    report.windows_evicted += head.windows_routed() - head.full_windows() - head.quantized_windows();
  }
  report.tokens_evicted = report.windows_evicted * settings_.rule.zones.window;
  return report;
}

}  // namespace qevict
