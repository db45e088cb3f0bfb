// Routing of a BudgetedCache: rank, settle within layers, allocate, plan, apply.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>

#include "base/check.h"
#include "base/clock.h"
#include "codec/nuq.h"
#include "engine/budgeted_cache.h"
#include "engine/observe.h"
#include "routing/allocator.h"
#include "routing/router.h"
#include "routing/stages.h"

namespace qevict {
BudgetedCache::HeadRouting BudgetedCache::routing_of(int layer, int kv_head, const TokenView& tokens) const {
  HeadRouting routing;
  routing.layer = layer;
  routing.kv_head = kv_head;
  routing.tokens = tokens;
  return routing;
}

std::int64_t BudgetedCache::windows_left(const HeadRouting& routing, const HeadLayout& layout) const {
  const auto n_tokens = static_cast<int>(routing.tokens.first_position + routing.tokens.n);
  return std::max<std::int64_t>(tiers_.head(routing.layer, routing.kv_head).windows_routed(),
                                layout.zones.windows_left(n_tokens));
}

BudgetedCache::TokenSpan BudgetedCache::challengers(const HeadRouting& routing, const HeadLayout& layout) const {
  const std::int64_t next = tiers_.head(routing.layer, routing.kv_head).windows_routed();
  const std::int64_t first = layout.zones.first_position(static_cast<int>(next)) - routing.tokens.first_position;
  return {.begin = static_cast<std::size_t>(first),
          .n = static_cast<std::size_t>((windows_left(routing, layout) - next) * layout.zones.window)};
}

// The norms of the challengers' values that weights are made of. Projected ones come from the model, which is asked by
// one thread, for whole layers.
Result<void> BudgetedCache::take_norms(std::span<HeadRouting> heads, const HeadLayout& layout) const {
  if (!settings_.rule.weights) return {};
  const auto dim = static_cast<std::size_t>(tiers_.shape().value_dim);
  std::vector<std::span<const Half>> values;
  std::vector<std::span<float>> norms;
  for (HeadRouting& head : heads) {
    const auto [at, n] = challengers(head, layout);
    head.norms.resize(n);
    values.push_back(head.tokens.values.subspan(at * dim, n * dim));
    norms.emplace_back(head.norms);
    if (!settings_.weight->projected) value_norms(values.back(), tiers_.shape().value_dim, head.norms);
  }
  if (!settings_.weight->projected) return {};
  const auto n_heads = static_cast<std::size_t>(tiers_.shape().n_kv_heads);
  for (std::size_t begin = 0; begin < heads.size(); begin += n_heads) {
    const std::span<const std::span<float>> of_layer = std::span(norms).subspan(begin, n_heads);
    const Result<void> made = projected_norms_(heads[begin].layer, std::span(values).subspan(begin, n_heads), of_layer);
    if (!made) return made;
    if (settings_.weight->of_layer) share_over_heads(of_layer);
  }
  return {};
}

// Thresholds of outliers of the challengers' tokens, over the values of all KV heads of the layer, for codecs that use
// them; one vector a layer, which the heads' views borrow. Heads whose challengers differ are left without.
std::vector<std::vector<float>> BudgetedCache::take_value_ranges(std::span<HeadRouting> heads,
                                                                 const HeadLayout& layout) const {
  std::vector<std::vector<float>> result;
  const auto n_heads = static_cast<std::size_t>(tiers_.shape().n_kv_heads);
  const auto dim = static_cast<std::size_t>(tiers_.shape().value_dim);
  for (std::size_t begin = 0; begin < heads.size(); begin += n_heads) {
    const std::span<HeadRouting> layer = heads.subspan(begin, n_heads);
    const TokenView& first = layer.front().tokens;
    const auto [at, n] = challengers(layer.front(), layout);
    if (n == 0) continue;
    std::vector<float> values;
    for (const HeadRouting& head : layer) {
      for (const Half v : head.tokens.values.subspan(at * dim, n * dim)) values.push_back(to_float(v));
    }
    std::vector<float>& ranges = result.emplace_back(2 * static_cast<std::size_t>(first.n));
    nuq_value_ranges(values, tiers_.shape().n_kv_heads, tiers_.shape().value_dim,
                     std::span(ranges).subspan(2 * at, 2 * n));
    for (HeadRouting& head : layer) head.tokens.value_ranges = ranges;
  }
  return result;
}

namespace {

// A window's weight: its tokens' norms, each by its share of the window's score. That turns a sum of attention into one
// of attention times norm, and stays with the window (docs/design.md).
float weight_of(std::span<const float> norms, std::span<const float> scores) {
  float total = 0, weighted = 0, plain = 0;
  for (std::size_t t = 0; t < norms.size(); ++t) {
    const float score = scores.empty() ? 0 : scores[t];
    total += score;
    weighted += score * norms[t];
    plain += norms[t] / static_cast<float>(norms.size());
  }
  return total > 0 ? weighted / total : plain;
}

}  // namespace

// Scores of a ranking that looks at the head as it is now.
void BudgetedCache::look_anew(HeadRouting& routing, const HeadLayout& layout) const {
  const HeadCache& head = tiers_.head(routing.layer, routing.kv_head);
  routing.observation = observe(*settings_.ranking, head, tiers_.shape(), layout.zones, routing.tokens,
                                routing.candidates, attention_scale_);
  std::vector<float> scores(static_cast<std::size_t>(routing.observation.n));
  settings_.ranking->observe(routing.observation, scores);
  const auto window = static_cast<std::size_t>(layout.zones.window);
  const std::size_t held = static_cast<std::size_t>(head.full_windows() + head.quantized_windows());
  if (settings_.rule.scores) {  // kept, so that layers to come can be weighed against this one
    routing.scores.assign(static_cast<std::size_t>(routing.tokens.n), 0.0f);
    routing.tokens.scores = routing.scores;
  }
  for (std::size_t i = 0; i < routing.candidates.size(); ++i) {
    Candidate& candidate = routing.candidates[i];
    const std::span<const float> of_window = std::span<const float>(scores).subspan(i * window, window);
    candidate.score = sum_of_accumulators(of_window, 1);
    if (settings_.rule.scores && i >= held) {
      const std::int64_t at = layout.zones.first_position(static_cast<int>(candidate.window));
      std::ranges::copy(of_window, routing.scores.begin() + (at - routing.tokens.first_position));
    }
    if (settings_.rule.weights && i >= held)
      candidate.weight = weight_of(std::span(routing.norms).subspan((i - held) * window, window), of_window);
  }
}

// Collects the head's candidates and their scores.
Result<void> BudgetedCache::rank(HeadRouting& routing, const HeadLayout& layout) const {
  const HeadCache& head = tiers_.head(routing.layer, routing.kv_head);
  TokenView& tokens = routing.tokens;
  const Zones& zones = layout.zones;
  const std::int64_t next = head.windows_routed();
  routing.left = windows_left(routing, layout);
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
  if (settings_.rule.weights && !settings_.weight->projected) {
    if (Result<void> taken = take_norms({&routing, 1}, layout); !taken) return taken;
  }
  routing.candidates = head.windows();
  for (std::int64_t window = next; window < routing.left; ++window) {
    Candidate candidate{.window = window, .tier = Tier::none};
    if (!tokens.scores.empty()) {
      const auto at = static_cast<std::size_t>(zones.first_position(static_cast<int>(window)) - tokens.first_position);
      const auto scores = tokens.scores.subspan(at, static_cast<std::size_t>(zones.window));
      candidate.score = sum_of_accumulators(scores, settings_.scores.power);
      if (settings_.rule.weights) {
        const auto first = static_cast<std::size_t>((window - next) * zones.window);
        candidate.weight = weight_of(std::span(routing.norms).subspan(first, scores.size()), scores);
      }
    }
    routing.candidates.push_back(candidate);
  }
  if (settings_.ranking->observe != nullptr && routing.anew) look_anew(routing, layout);
  if (settings_.ranking->force == nullptr) routing.observation = {};
  if (settings_.rule.weights || !routing.anew) weigh(routing);
  if (settings_.ranking->score != nullptr) {
    settings_.ranking->score(routing.candidates, {.zones = zones, .n_tokens = tokens.first_position + tokens.n});
  }
  float probe = 0;  // becomes a NaN where one is not finite
  for (const Candidate& candidate : routing.candidates) probe += candidate.forced ? 0 : 0 * candidate.score;
  if (probe == 0) return {};
  const auto bad =
      std::ranges::find_if(routing.candidates, [](const Candidate& c) { return !c.forced && !std::isfinite(c.score); });
  return error_of(Error::Kind::internal, "layer {}, KV head {}: the attention score of window {} is not finite",
                  routing.layer, routing.kv_head, bad->window);
}

// Scores times weights, where these count from the beginning; a head that was routed before in this event keeps what
// was forced then.
void BudgetedCache::weigh(HeadRouting& routing) const {
  for (Candidate& candidate : routing.candidates) {
    if (settings_.rule.weights && candidate.tier == Tier::none) routing.weights.push_back(candidate.weight);
    candidate.forced = std::isinf(candidate.score) && !routing.anew;
    if (settings_.rule.weights && settings_.first_stage_per_mille == 0 && !candidate.forced)
      candidate.score *= candidate.weight;
  }
}

// What the heads of one layer settle together once all are ranked: the windows that must stay, and one score for all
// where they keep one set.
void BudgetedCache::finish_layer(std::span<HeadRouting> heads, const HeadLayout& layout) const {
  if (heads.front().anew && settings_.ranking->force != nullptr) force_windows(heads, layout);
  if (settings_.allocator->sharing == Sharing::one_set) {
    std::vector<std::vector<Candidate>*> candidates;
    for (HeadRouting& head : heads) candidates.push_back(&head.candidates);
    share_scores(candidates);
  }
}

void BudgetedCache::force_windows(std::span<HeadRouting> heads, const HeadLayout& layout) const {
  const auto window = static_cast<std::size_t>(layout.zones.window);
  std::vector<const Observation*> observations;
  for (const HeadRouting& head : heads) observations.push_back(&head.observation);
  const int most = (layout.full_slots + layout.quantized_slots) * layout.zones.window;
  const std::vector<std::vector<char>> forced = settings_.ranking->force(observations, most);
  for (std::size_t h = 0; h < heads.size(); ++h)
    for (std::size_t i = 0; i < forced[h].size(); ++i) heads[h].candidates[i / window].forced |= forced[h][i] != 0;
  for (HeadRouting& head : heads) {
    head.observation = {};
    for (const Candidate& candidate : head.candidates) {
      if (head.scores.empty() || candidate.tier != Tier::none || !candidate.forced) continue;
      const std::int64_t first = layout.zones.first_position(static_cast<int>(candidate.window));
      head.scores[static_cast<std::size_t>(first - head.tokens.first_position)] =
          std::numeric_limits<float>::infinity();
    }
  }
}

// The history bytes of each head. equal: those of an equal share.
std::vector<std::size_t> BudgetedCache::share_bytes(std::span<const HeadRouting> heads, const HeadLayout& layout,
                                                    const SpendingRule& rule) const {
  const AllocatorRow& allocator = *settings_.allocator;
  const std::size_t equal = layout.budget_bytes - layout.fixed_bytes;
  std::vector<std::size_t> bytes(heads.size(), equal);
  if (allocator.scope == Scope::head || allocator.sharing == Sharing::one_set) return bytes;
  const bool partial = heads.size() < tiers_.shape().heads();
  if (allocator.scope == Scope::model && partial && routed_) {  // a later turn's layer
    for (std::size_t i = 0; i < heads.size(); ++i) {
      const std::size_t held = tiers_.head(heads[i].layer, heads[i].kv_head).layout().allocated_bytes();
      bytes[i] = held - std::min(held, layout.fixed_bytes);
    }
    return bytes;
  }
  if (allocator.sharing == Sharing::slope) {
    const TokenView& tokens = heads.front().tokens;
    const int window = layout.zones.window;
    const std::vector<std::int64_t> of_layers = pyramid_tokens(
        tiers_.shape().n_layers, tokens.first_position + tokens.n,
        layout.zones.recent + static_cast<double>(equal / layout.full_slot_bytes) * window, layout.zones.recent);
    for (std::size_t i = 0; i < heads.size(); ++i) {
      const std::int64_t routed = of_layers[static_cast<std::size_t>(heads[i].layer)] - layout.zones.recent;
      bytes[i] = static_cast<std::size_t>(std::max<std::int64_t>(routed, 0) / window) * layout.full_slot_bytes;
    }
    return bytes;
  }
  std::vector<const std::vector<Candidate>*> candidates;
  for (const HeadRouting& head : heads) candidates.push_back(&head.candidates);
  const std::size_t total = equal * (allocator.scope == Scope::model ? tiers_.shape().heads() : heads.size());
  if (allocator.sharing == Sharing::mixed)
    return mix(candidates, rule, total, equal, settings_.floor, layout.full_slot_bytes);
  // The floor is a share of all that a head keeps (AdaKV's floor(alpha B)).
  const double whole = static_cast<double>(equal) +
                       static_cast<double>(layout.zones.recent) * static_cast<double>(tiers_.shape().token_bytes());
  const auto floor = std::min(equal, static_cast<std::size_t>(settings_.floor * whole));
  return allocate(candidates, rule, total, floor,
                  allocator.scope == Scope::model && partial ? Leftover::withheld : Leftover::shared);
}

SpendingRule BudgetedCache::rule_for(const HeadLayout& layout) const {
  SpendingRule rule = settings_.spending;
  rule.costs = {.full_slot_bytes = layout.full_slot_bytes, .quantized_slot_bytes = layout.quantized_slot_bytes};
  return rule;
}

// What a budget that follows the tokens has gained since the last split goes to all heads alike: by gain to codes, so
// that as little as possible is lost before the next split weighs it up, else as the fixed share says.
void BudgetedCache::grow(std::span<HeadRouting> heads, const HeadLayout& layout, std::size_t more) const {
  const SpendingRule rule = rule_for(layout);
  const TierCapacity gained = spend({}, rule, more);
  for (HeadRouting& head : heads) {
    head.layout.full_slots += gained.full;
    head.layout.quantized_slots += gained.quantized;
  }
}

// Each head's capacities: its share of the history bytes, then its own split of them over the tiers. layout: an equal
// share of the budget. heads: of one allocator scope, or those of it that exist so far.
void BudgetedCache::lay_out(std::span<HeadRouting> heads, const HeadLayout& layout) const {
  for (HeadRouting& head : heads) head.layout = layout;
  if (settings_.rule.everything) return;
  if (settings_.allocator->scope == Scope::head && !settings_.spending.by_gain) return;
  // Between two splits every head keeps its capacities, if the budget still has room for them: what is bought at full
  // precision, or by another head, must stay for a while to be worth it.
  const std::int64_t split_steps = std::int64_t{settings_.method->split_events} * turn_.interval;
  if (turn_steps_ > 0 && (split_steps == 0 || turn_steps_ % split_steps != 0)) {
    std::size_t bytes = 0;
    bool fits = true;
    for (HeadRouting& head : heads) {
      const HeadCache& cache = tiers_.head(head.layer, head.kv_head);
      head.layout.full_slots = cache.layout().full_slots;
      head.layout.quantized_slots = cache.layout().quantized_slots;
      bytes += head.layout.allocated_bytes();
      fits = fits && cache.routed();
    }
    if (fits && bytes <= heads.size() * layout.budget_bytes) {
      grow(heads, layout, (heads.size() * layout.budget_bytes - bytes) / heads.size());
      return;
    }
  }
  const SpendingRule rule = rule_for(layout);
  const std::vector<std::size_t> bytes = share_bytes(heads, layout, rule);
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const TierCapacity split = spend(heads[i].candidates, rule, bytes[i]);
    heads[i].layout.full_slots = split.full;
    heads[i].layout.quantized_slots = split.quantized;
    heads[i].layout.budget_bytes = layout.fixed_bytes + bytes[i];
  }
}

Result<void> BudgetedCache::plan_and_apply(HeadRouting& routing) {
  if (settings_.first_stage_per_mille > 0)
    two_stages(routing.candidates, routing.layout.full_slots, settings_.first_stage_per_mille);
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
  if (settings_.rule.weights && settings_.weight->projected) {
    if (Result<void> taken = take_norms(heads, layout); !taken) return taken;
  }
  std::vector<std::vector<float>> ranges;
  if (settings_.rule.codec != nullptr && settings_.rule.codec->uses_value_ranges)
    ranges = take_value_ranges(heads, layout);
  if (scope == Scope::head && settings_.ranking->force == nullptr) {
    const auto alone = [&](HeadRouting& head) -> Result<void> {
      if (Result<void> ranked = rank(head, layout); !ranked) return ranked;
      lay_out({&head, 1}, layout);
      Result<void> applied = plan_and_apply(head);
      head.candidates = {};  // for the next head: held until the end they would take megabytes of new pages each time
      return applied;
    };
    if (Result<void> routed = on_all(heads, alone); !routed) return routed;
  } else {
    if (Result<void> ranked = on_all(heads, [&](HeadRouting& head) { return rank(head, layout); }); !ranked)
      return ranked;
    const auto of_layer = static_cast<std::size_t>(tiers_.shape().n_kv_heads);
    const auto finish = [&](HeadRouting& head) -> Result<void> {  // a layer, with its first head
      const auto at = static_cast<std::size_t>(&head - heads.data());
      if (at % of_layer == 0) finish_layer(std::span(heads).subspan(at, of_layer), layout);
      return {};
    };
    if (settings_.ranking->force != nullptr || settings_.allocator->sharing == Sharing::one_set) {
      if (Result<void> finished = on_all(heads, finish); !finished) return finished;
    }
    const std::size_t step = scope == Scope::model ? heads.size() : scope == Scope::layer ? of_layer : 1;
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

}  // namespace qevict
