#include "engine/budgeted_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>

#include "base/check.h"
#include "routing/allocator.h"
#include "routing/router.h"

namespace qevict {
namespace {

// Routings between two splits of the history bytes: what is bought at full precision, or by another head, must stay for
// a while to be worth it. The end of a turn splits too.
constexpr std::int64_t kSplitEvents = 8;

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
  const std::size_t bytes = budget_bytes(turn, n_tokens);
  return plan_layout(tiers_.shape(), settings_.rule, settings_.recent, bytes / tiers_.shape().heads(), raise, bytes);
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
  if (!follows_attention() || settings_.scores.uniform()) return {};
  const int tail = tiers_.heads().front().tail().n;
  std::vector<float> weights(static_cast<std::size_t>(tail + n_rows));
  for (int row = 0; row < n_rows; ++row) {
    weights[static_cast<std::size_t>(tail + row)] = settings_.scores.row_weight(row, n_rows);
  }
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
  const bool streams = settings_.allocator->scope == Scope::model && !routed_;
  for (int before = 0; streams && before < layer; ++before) {
    for (int h = 0; h < tiers_.shape().n_kv_heads; ++h)
      heads.push_back(routing_of(before, h, tiers_.head(before, h).tail()));
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

BudgetedCache::HeadRouting BudgetedCache::routing_of(int layer, int kv_head, const TokenView& tokens) const {
  return {.layer = layer,
          .kv_head = kv_head,
          .tokens = tokens,
          .scores = {},
          .weights = {},
          .left = 0,
          .candidates = {},
          .layout = {}};
}

// Mean L2 norm of a window's values, each by its token's share of the window's score: what turns a sum of attention
// into one of attention times norm, and stays with the window (docs/design.md).
float BudgetedCache::value_weight(const TokenView& tokens, std::size_t at, std::span<const float> scores) const {
  const auto dim = static_cast<std::size_t>(tiers_.shape().value_dim);
  float total = 0, weighted = 0, plain = 0;
  for (std::size_t t = 0; t < scores.size(); ++t) {
    float square = 0;
    for (const Half v : tokens.values.subspan((at + t) * dim, dim)) square += to_float(v) * to_float(v);
    const float norm = std::sqrt(square);
    total += scores[t];
    weighted += scores[t] * norm;
    plain += norm / static_cast<float>(scores.size());
  }
  return total > 0 ? weighted / total : plain;
}

// Collects the head's candidates and their scores.
Result<void> BudgetedCache::rank(HeadRouting& routing, const HeadLayout& layout) const {
  const HeadCache& head = tiers_.head(routing.layer, routing.kv_head);
  TokenView& tokens = routing.tokens;
  const Zones& zones = layout.zones;
  const std::int64_t next = head.windows_routed();
  routing.left = std::max<std::int64_t>(next, zones.windows_left(static_cast<int>(tokens.first_position + tokens.n)));
  if (settings_.ranking->token_scores != nullptr) {
    routing.scores.resize(static_cast<std::size_t>(tokens.n));
    settings_.ranking->token_scores({.keys = tokens.keys,
                                     .values = tokens.values,
                                     .key_dim = tiers_.shape().key_dim,
                                     .value_dim = tiers_.shape().value_dim,
                                     .first_position = tokens.first_position,
                                     .n = tokens.n,
                                     .layer = routing.layer,
                                     .kv_head = routing.kv_head},
                                    routing.scores);
    routing.tokens.scores = routing.scores;
  }
  routing.candidates = head.windows();
  for (std::int64_t window = next; window < routing.left; ++window) {
    Candidate candidate{.window = window, .tier = Tier::none};
    if (!tokens.scores.empty()) {
      const auto at = static_cast<std::size_t>(zones.first_position(static_cast<int>(window)) - tokens.first_position);
      const auto scores = tokens.scores.subspan(at, static_cast<std::size_t>(zones.window));
      candidate.score = sum_of_accumulators(scores, settings_.scores.power);
      if (settings_.rule.weights) {
        candidate.weight = value_weight(tokens, at, scores);
        routing.weights.push_back(candidate.weight);
      }
    }
    routing.candidates.push_back(candidate);
  }
  if (settings_.rule.weights) {
    for (Candidate& candidate : routing.candidates) candidate.score *= candidate.weight;
  }
  if (settings_.ranking->score != nullptr) settings_.ranking->score(routing.candidates);
  for (const Candidate& candidate : routing.candidates) {
    if (!std::isfinite(candidate.score)) {
      return error_of(Error::Kind::internal, "layer {}, KV head {}: the attention score of window {} is not finite",
                      routing.layer, routing.kv_head, candidate.window);
    }
  }
  return {};
}

// Each head's capacities: its share of the history bytes, then its own split of them over the tiers. layout: an equal
// share of the budget. heads: of one allocator scope, or those of it that exist so far.
void BudgetedCache::lay_out(std::span<HeadRouting> heads, const HeadLayout& layout) const {
  for (HeadRouting& head : heads) head.layout = layout;
  const Scope scope = settings_.allocator->scope;
  if (scope == Scope::head && !settings_.spending.by_gain) return;
  const std::size_t equal = layout.budget_bytes - layout.fixed_bytes;
  const auto cache_of = [&](const HeadRouting& head) -> const HeadCache& {
    return tiers_.head(head.layer, head.kv_head);
  };
  // Between two splits every head keeps its capacities, if the budget still has room for them.
  if (turn_steps_ > 0 && turn_steps_ % (kSplitEvents * settings_.rule.interval) != 0) {
    std::size_t bytes = 0;
    bool fits = true;
    for (HeadRouting& head : heads) {
      head.layout.full_slots = cache_of(head).layout().full_slots;
      head.layout.quantized_slots = cache_of(head).layout().quantized_slots;
      bytes += head.layout.allocated_bytes();
      fits = fits && cache_of(head).routed();
    }
    if (fits && bytes <= heads.size() * layout.budget_bytes) return;
  }
  SpendingRule rule = settings_.spending;
  rule.costs = {.full_slot_bytes = layout.full_slot_bytes, .quantized_slot_bytes = layout.quantized_slot_bytes};
  std::vector<std::size_t> bytes(heads.size(), equal);
  const bool partial = heads.size() < tiers_.shape().heads();
  if (scope == Scope::model && partial && routed_) {  // a later turn's layer
    for (std::size_t i = 0; i < heads.size(); ++i) {
      const std::size_t held = cache_of(heads[i]).layout().allocated_bytes();
      bytes[i] = held - std::min(held, layout.fixed_bytes);
    }
  } else if (scope != Scope::head) {
    std::vector<const std::vector<Candidate>*> candidates;
    for (const HeadRouting& head : heads) candidates.push_back(&head.candidates);
    const auto floor = static_cast<std::size_t>(settings_.floor * static_cast<double>(equal));
    bytes = allocate(candidates, rule, equal * (scope == Scope::model ? tiers_.shape().heads() : heads.size()), floor,
                     scope == Scope::model && partial ? Leftover::withheld : Leftover::shared);
  }
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const TierCapacity split = spend(heads[i].candidates, rule, bytes[i]);
    heads[i].layout.full_slots = split.full;
    heads[i].layout.quantized_slots = split.quantized;
    heads[i].layout.budget_bytes = layout.fixed_bytes + bytes[i];
  }
}

Result<void> BudgetedCache::plan_and_apply(HeadRouting& routing) {
  const RoutingPlan plan = route(event_, routing.candidates,
                                 {.full = routing.layout.full_slots,
                                  .quantized = routing.layout.quantized_slots,
                                  .promotion = settings_.promotion});
  for (const TierMove& move : plan.moves) {
    routing.promotions += move.from == Tier::quantized && move.to == Tier::full;
    routing.demotions += move.to == Tier::quantized;
    routing.evictions += move.to == Tier::evicted;
  }
  const std::int64_t keep =
      std::max(routing.tokens.first_position,
               static_cast<std::int64_t>(routing.layout.zones.first_position(static_cast<int>(routing.left))));
  const Clock::time_point start = Clock::now();
  const Result<void> applied =
      tiers_.head(routing.layer, routing.kv_head).apply(plan, routing.tokens, keep, routing.layout, routing.weights);
  routing.migration_ms = ms_since(start);
  if (!applied) {
    Error error = applied.error();
    error.message = fmt::format("layer {}, KV head {}: {}", routing.layer, routing.kv_head, error.message);
    return error;
  }
  return {};
}

// Does the work for every head, on all threads of the team: heads know nothing of each other, so it does not matter
// which thread takes one. The first error in the order of heads counts.
Result<void> BudgetedCache::on_all(std::span<HeadRouting> heads,
                                   const std::function<Result<void>(HeadRouting&)>& work) {
  std::vector<Result<void>> results(heads.size());
  std::vector<std::exception_ptr> bugs(heads.size());
  std::atomic<std::size_t> next = 0;
  const Work all = [&](int, int) {
    for (std::size_t i = next++; i < heads.size(); i = next++) {
      const Clock::time_point start = Clock::now();
      try {
        results[i] = work(heads[i]);
      } catch (...) {
        bugs[i] = std::current_exception();
      }
      heads[i].ranking_ms += ms_since(start);
    }
  };
  if (team_ && heads.size() > 1) {
    if (Result<void> worked = team_(all); !worked) return worked;
  } else {
    all(0, 1);
  }
  for (std::size_t i = 0; i < heads.size(); ++i) {
    if (bugs[i]) std::rethrow_exception(bugs[i]);
    if (!results[i]) return results[i];
  }
  return {};
}

// Rank, allocate, plan, apply. heads: all that share bytes, for each allocator scope that is among them.
Result<void> BudgetedCache::route_heads(std::vector<HeadRouting> heads, const HeadLayout& layout) {
  const Scope scope = settings_.allocator->scope;
  if (scope == Scope::head) {
    const auto alone = [&](HeadRouting& head) -> Result<void> {
      if (Result<void> ranked = rank(head, layout); !ranked) return ranked;
      lay_out({&head, 1}, layout);
      return plan_and_apply(head);
    };
    if (Result<void> routed = on_all(heads, alone); !routed) return routed;
  } else {
    if (Result<void> ranked = on_all(heads, [&](HeadRouting& head) { return rank(head, layout); }); !ranked)
      return ranked;
    const std::size_t step = scope == Scope::model ? heads.size() : static_cast<std::size_t>(tiers_.shape().n_kv_heads);
    for (std::size_t begin = 0; begin < heads.size(); begin += step)
      lay_out(std::span(heads).subspan(begin, step), layout);
    // Heads that shrink go first, so that there is room for those that grow.
    const auto grows = std::stable_partition(heads.begin(), heads.end(), [&](const HeadRouting& head) {
      const HeadCache& cache = tiers_.head(head.layer, head.kv_head);
      return cache.routed() && head.layout.allocated_bytes() <= cache.layout().allocated_bytes();
    });
    const auto apply = [&](HeadRouting& head) { return plan_and_apply(head); };
    if (Result<void> applied = on_all({heads.begin(), grows}, apply); !applied) return applied;
    if (Result<void> applied = on_all({grows, heads.end()}, apply); !applied) return applied;
  }
  for (const HeadRouting& head : heads) {
    totals_.promotions += head.promotions;
    totals_.demotions += head.demotions;
    totals_.evictions += head.evictions;
    migration_cpu_ms_ += head.migration_ms;
    ranking_cpu_ms_ += head.ranking_ms - head.migration_ms;
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
