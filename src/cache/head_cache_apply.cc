// Carrying out a routing plan: HeadCache::apply and what it needs.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cache/head_cache.h"
#include "kernels/rotation_table.h"

namespace qevict {

namespace {

int take_slot(std::vector<int>& free) {
  QEVICT_CHECK(!free.empty(), "a checked plan never overfills a tier");
  const int slot = free.back();
  free.pop_back();
  return slot;
}

}  // namespace

// Everything apply() needs that can fail or that overwriting would lose, made before the first byte moves.
struct HeadCache::Staged {
  std::vector<std::byte> head_data;  // frozen parameters, if made at this event
  // By place of the move in the plan:
  std::vector<std::byte> records;  // [moves][payload] of windows that leave or enter the quantized tier
  std::vector<float> scores;       // [moves][window_floats] of windows that move between tiers
};

// Frozen parameters of the codec, from every window that is a candidate at the event of the first demotion, evicted
// ones included (qevict-examples.md A15), and where those are few from the tokens of the tail too: they must do for the
// whole sequence (docs/design.md).
std::vector<std::byte> HeadCache::estimate_head(const RoutingPlan& plan, const TokenView& tokens) const {
  constexpr std::size_t kEnoughTokens = 128;
  const auto key_dim = static_cast<std::size_t>(shape_.key_dim);
  const auto value_dim = static_cast<std::size_t>(shape_.value_dim);
  std::vector<float> keys, values;
  const auto add = [&](std::int64_t position, const Half* k, const Half* v) {
    for (std::size_t i = 0; i < key_dim; ++i) keys.push_back(to_float(k[i]));
    for (std::size_t i = 0; i < value_dim; ++i) values.push_back(to_float(v[i]));
    if (!rule_.codec->keys_after_rope) rope_->unrotate(std::span(keys).last(key_dim), static_cast<double>(position));
  };
  const auto window = static_cast<std::size_t>(rule_.zones.window);
  for (int i = 0; i < full_index_.size(); ++i) {
    const WindowIndex::Entry entry = full_index_[i];
    const std::int64_t first = rule_.zones.sinks + rule_.zones.window * entry.window;
    const auto token = static_cast<std::size_t>(entry.slot) * window;
    for (std::size_t t = 0; t < window; ++t) {
      add(first + static_cast<std::int64_t>(t), full_keys_.as<Half>() + (token + t) * key_dim,
          full_values_.as<Half>() + (token + t) * value_dim);
    }
  }
  std::int64_t challengers_end = rule_.zones.sinks + rule_.zones.window * next_window_;
  for (const TierMove& move : plan.moves) challengers_end += move.from == Tier::none ? rule_.zones.window : 0;
  const std::int64_t first = std::max<std::int64_t>(tokens.first_position, rule_.zones.sinks);
  for (std::int64_t position = first; position < tokens.first_position + tokens.n; ++position) {
    if (position >= challengers_end && keys.size() >= kEnoughTokens * key_dim) break;
    const auto at = static_cast<std::size_t>(position - tokens.first_position);
    add(position, tokens.keys.data() + at * key_dim, tokens.values.data() + at * value_dim);
  }
  std::vector<std::byte> head_data(rule_.head_param_bytes(shape_));
  rule_.codec->estimate_head(rule_.window_shape(shape_), keys, values, head_data);
  return head_data;
}

void HeadCache::load_window(std::int64_t window, const Half* keys, const Half* values, std::span<float> k,
                            std::span<float> v) const {
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = to_float(keys[i]);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = to_float(values[i]);
  if (rule_.codec->keys_after_rope) return;
  window_rotation(*rope_, rule_.zones.window)
      .unrotate(k, shape_.key_dim, rule_.zones.sinks + rule_.zones.window * window);
}

Result<void> HeadCache::check(const RoutingPlan& plan, const TokenView& tokens, std::int64_t keep_position,
                              const HeadLayout& new_layout) const {
  std::int64_t previous = -1;
  std::int64_t challenger = next_window_;
  int full = full_index_.size();
  int quantized = code_index_.size();
  for (const TierMove& move : plan.moves) {
    QEVICT_CHECK(move.window > previous, "moves are in ascending window id, at most one per window");
    previous = move.window;
    QEVICT_CHECK(move.from != move.to && move.to != Tier::none && move.from != Tier::evicted,
                 "a move changes the tier, and eviction is for good");
    if (move.from == Tier::none) {
      QEVICT_CHECK(move.window == challenger, "challengers are the next windows, each in the plan");
      const std::int64_t first = rule_.zones.sinks + rule_.zones.window * move.window;
      QEVICT_CHECK(first >= tokens.first_position && first + rule_.zones.window <= tokens.first_position + tokens.n,
                   "a challenger's tokens are at hand");
      ++challenger;
    } else {
      QEVICT_CHECK((move.from == Tier::full ? full_index_ : code_index_).contains(move.window),
                   "a window leaves the tier it is in");
    }
    full += (move.to == Tier::full) - (move.from == Tier::full);
    quantized += (move.to == Tier::quantized) - (move.from == Tier::quantized);
  }
  QEVICT_CHECK(full <= new_layout.full_slots && quantized <= new_layout.quantized_slots,
               "a plan respects the capacities");
  QEVICT_CHECK(full == plan.full_after && quantized == plan.quantized_after, "a plan knows its own outcome");
  QEVICT_CHECK(tokens.first_position == tail_position_ && tokens.n >= tail_size_, "the tokens begin with the tail");
  QEVICT_CHECK(keep_position == rule_.zones.sinks + rule_.zones.window * challenger,
               "what is kept begins where the routed windows end");
  const std::int64_t kept = tokens.first_position + tokens.n - keep_position;
  QEVICT_CHECK(kept >= 0 && kept <= new_layout.recent_capacity, "what is left of the tail fits its reserve");
  QEVICT_CHECK(
      new_layout.index_bytes >=
          WindowIndex::entry_bytes_for(std::max(new_layout.full_slots, new_layout.quantized_slots), rule_.max_windows),
      "an index entry holds every window id and slot");
  return {};
}

// What else is known of a window's tokens: of challengers' only.
TokenSide HeadCache::side_of(const TierMove& move, const TokenView& tokens) const {
  if (move.from != Tier::none) return {};
  const auto at =
      static_cast<std::size_t>(rule_.zones.sinks + rule_.zones.window * move.window - tokens.first_position);
  const auto n = static_cast<std::size_t>(rule_.zones.window);
  TokenSide side;
  if (rule_.codec->uses_scores && !tokens.scores.empty()) side.scores = tokens.scores.subspan(at, n);
  if (rule_.codec->uses_value_ranges && !tokens.value_ranges.empty())
    side.value_ranges = tokens.value_ranges.subspan(2 * at, 2 * n);
  return side;
}

Result<HeadCache::Staged> HeadCache::stage(const RoutingPlan& plan, const TokenView& tokens) {
  Staged staged;
  std::vector<float> keys(key_count());
  std::vector<float> values(value_count());
  const auto load = [&](const TierMove& move, std::span<float> k, std::span<float> v) {
    if (move.from == Tier::none) {
      const auto at =
          static_cast<std::size_t>(rule_.zones.sinks + rule_.zones.window * move.window - tokens.first_position);
      load_window(move.window, tokens.keys.data() + at * static_cast<std::size_t>(shape_.key_dim),
                  tokens.values.data() + at * static_cast<std::size_t>(shape_.value_dim), k, v);
    } else {
      const int slot = full_index_[full_index_.lower_bound(move.window)].slot;
      load_window(move.window, full_keys(slot), full_values(slot), k, v);
    }
  };

  std::span<const std::byte> head_data{head_data_.data(), head_data_.size()};
  const std::size_t head_bytes = rule_.head_param_bytes(shape_);
  const bool first_demotion =
      std::any_of(plan.moves.begin(), plan.moves.end(), [](const TierMove& m) { return m.to == Tier::quantized; });
  if (head_bytes > 0 && !head_frozen_ && first_demotion) {
    staged.head_data = known_head_data_.empty() ? estimate_head(plan, tokens) : known_head_data_;
    head_data = staged.head_data;
  }

  staged.records.resize(plan.moves.size() * payload_);
  const std::size_t floats = score_floats();
  staged.scores.resize(plan.moves.size() * floats);
  for (std::size_t i = 0; i < plan.moves.size(); ++i) {
    const TierMove& move = plan.moves[i];
    const std::span<std::byte> codes = std::span(staged.records).subspan(i * payload_, payload_);
    if (move.from == Tier::full || move.from == Tier::quantized) {
      const bool full = move.from == Tier::full;
      const WindowIndex& index = full ? full_index_ : code_index_;
      const WindowIndex::Entry entry = index[index.lower_bound(move.window)];
      std::copy_n((full ? full_scores_ : code_scores_).as<float>() + static_cast<std::size_t>(entry.slot) * floats,
                  floats, staged.scores.begin() + static_cast<std::ptrdiff_t>(i * floats));
      if (full ? entry.ledger && move.to == Tier::quantized : move.to == Tier::full) {
        std::ranges::copy(full ? ledger(entry.slot) : record(entry.slot), codes.begin());
        continue;
      }
    }
    if (move.to != Tier::quantized) continue;
    load(move, keys, values);
    if (!rule_.codec->encode_knowing(rule_.window_shape(shape_), keys, values, side_of(move, tokens), head_data,
                                     codes)) {
      return error_of(Error::Kind::internal, "a key or value of window {} is not finite", move.window);
    }
  }
  return staged;
}

void HeadCache::move_windows(const RoutingPlan& plan, const TokenView& tokens, const Staged& staged,
                             std::span<const float> weights) {
  const std::size_t floats = score_floats();
  std::vector<float> keys(key_count());
  std::vector<float> values(value_count());
  const auto key_dim = static_cast<std::size_t>(shape_.key_dim);
  const auto poison_full = [&](int slot) {
    poison({reinterpret_cast<std::byte*>(full_keys(slot)), key_count() * sizeof(Half)});
    poison({reinterpret_cast<std::byte*>(full_values(slot)), value_count() * sizeof(Half)});
  };

  // What leaves a tier goes first, so that there is room for what enters.
  std::vector<int> free_full = full_index_.free_slots();
  std::vector<int> free_codes = code_index_.free_slots();
  const auto leave_full = [&](const TierMove& move) {
    free_full.push_back(full_index_.erase(move.window).slot);
    poison_full(free_full.back());
  };
  for (const TierMove& move : plan.moves) {
    if (move.from == Tier::full && move.to == Tier::evicted) leave_full(move);
    if (move.from == Tier::quantized) {
      free_codes.push_back(code_index_.erase(move.window).slot);
      poison(record(free_codes.back()));
    }
  }
  const auto codes_of = [&](const TierMove& move) {
    const auto at = static_cast<std::size_t>(&move - plan.moves.data());
    return std::span(staged.records).subspan(at * payload_, payload_);
  };
  const auto into_codes = [&](const TierMove& move, std::span<const float> scores) {
    const int slot = take_slot(free_codes);
    std::ranges::copy(codes_of(move), record(slot).begin());
    std::ranges::copy(scores, code_scores_.as<float>() + static_cast<std::size_t>(slot) * floats);
    code_index_.insert({.window = move.window, .slot = slot, .ledger = false});
  };
  const auto scores_of = [&](const TierMove& move) {
    return std::span(staged.scores).subspan(static_cast<std::size_t>(&move - plan.moves.data()) * floats, floats);
  };
  for (const TierMove& move : plan.moves) {
    if (move.from != Tier::full || move.to != Tier::quantized) continue;
    leave_full(move);
    into_codes(move, scores_of(move));
  }
  for (const TierMove& move : plan.moves) {
    if (move.from != Tier::quantized || move.to != Tier::full) continue;
    // Promotion restores residency, not the original values: f16 of the codes, rotated at their own positions.
    const int slot = take_slot(free_full);
    const std::span<const std::byte> codes = codes_of(move);
    rule_.codec->decode(rule_.window_shape(shape_), codes, {head_data_.data(), head_data_.size()}, keys, values);
    if (!rule_.codec->keys_after_rope) {
      window_rotation(*rope_, rule_.zones.window)
          .rotate(keys, shape_.key_dim, rule_.zones.sinks + rule_.zones.window * move.window);
    }
    std::transform(keys.begin(), keys.end(), full_keys(slot), to_half_saturated);
    std::transform(values.begin(), values.end(), full_values(slot), to_half_saturated);
    std::ranges::copy(codes, ledger(slot).begin());
    std::ranges::copy(scores_of(move), full_scores_.as<float>() + static_cast<std::size_t>(slot) * floats);
    full_index_.insert({.window = move.window, .slot = slot, .ledger = true});
  }
  std::vector<float> scores(floats);
  std::size_t challenger = 0;
  for (const TierMove& move : plan.moves) {
    if (move.from != Tier::none) continue;
    ++next_window_;
    const auto at =
        static_cast<std::size_t>(rule_.zones.sinks + rule_.zones.window * move.window - tokens.first_position);
    if (rule_.scores) {
      const std::span<const float> of_tokens = tokens.scores.subspan(at, static_cast<std::size_t>(rule_.zones.window));
      if (rule_.score_power > 1) {
        std::ranges::copy(of_tokens, scores.begin());
      } else {
        scores.front() = 0;
        for (const float score : of_tokens) scores.front() += score;
      }
    }
    if (rule_.weights) scores.back() = weights.empty() ? 1.0f : weights[challenger];
    ++challenger;
    if (move.to == Tier::quantized) into_codes(move, scores);
    if (move.to != Tier::full) continue;
    const int slot = take_slot(free_full);
    std::memcpy(full_keys(slot), tokens.keys.data() + at * key_dim, key_count() * sizeof(Half));
    std::memcpy(full_values(slot), tokens.values.data() + at * static_cast<std::size_t>(shape_.value_dim),
                value_count() * sizeof(Half));
    std::ranges::copy(scores, full_scores_.as<float>() + static_cast<std::size_t>(slot) * floats);
    full_index_.insert({.window = move.window, .slot = slot, .ledger = false});
  }
}

void HeadCache::take_sinks(const TokenView& tokens) {
  const auto sinks = static_cast<std::size_t>(rule_.zones.sinks);
  QEVICT_CHECK(tokens.first_position == 0 && tokens.n >= rule_.zones.sinks, "the first routing sees the first tokens");
  sink_keys_ = Buffer(*meter_, ByteKind::f16, sinks * static_cast<std::size_t>(shape_.key_dim) * sizeof(Half));
  sink_values_ = Buffer(*meter_, ByteKind::f16, sinks * static_cast<std::size_t>(shape_.value_dim) * sizeof(Half));
  if (sinks == 0) return;
  std::memcpy(sink_keys_.data(), tokens.keys.data(), sink_keys_.size());
  std::memcpy(sink_values_.data(), tokens.values.data(), sink_values_.size());
}

// In-cache positions: the tokens that were evicted do not count, so the sinks move up to those that are held. From the
// original keys each time, that no rounding adds up.
void HeadCache::show_sinks() {
  const auto sinks = rule_.zones.sinks;
  const std::int64_t evicted =
      (next_window_ - full_index_.size() - code_index_.size()) * static_cast<std::int64_t>(rule_.zones.window);
  if (shown_sink_keys_.size() != rule_.shown_sink_bytes(shape_))
    shown_sink_keys_ = Buffer(*meter_, ByteKind::f16, rule_.shown_sink_bytes(shape_));
  const auto key_dim = static_cast<std::size_t>(shape_.key_dim);
  std::vector<float> key(key_dim);
  for (int i = 0; i < sinks; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * key_dim;
    std::transform(sink_keys_.as<Half>() + at, sink_keys_.as<Half>() + at + key_dim, key.begin(),
                   [](Half k) { return to_float(k); });
    rope_->unrotate(key, i);
    rope_->rotate(key, static_cast<double>(i + evicted));
    std::ranges::transform(key, shown_sink_keys_.as<Half>() + at, to_half_saturated);
  }
}

// Grows or shrinks the pools. A shrinking pool is repacked, so that the surviving windows lie in the slots that stay.
void HeadCache::resize_tiers(int full_slots, int code_slots, std::size_t index_bytes) {
  const auto copy_scores = [&](Buffer& scores, int from, int to) {
    float* floats = scores.as<float>();
    std::copy_n(floats + static_cast<std::size_t>(from) * score_floats(), score_floats(),
                floats + static_cast<std::size_t>(to) * score_floats());
  };
  const auto repack = [&](WindowIndex& index, int slots, auto&& resize, auto&& copy) {
    WindowIndex next(*meter_, slots, index_bytes);
    const bool shrinks = slots < index.capacity();
    std::vector<bool> used(static_cast<std::size_t>(std::max(slots, index.capacity())));
    for (int i = 0; i < index.size(); ++i) used[static_cast<std::size_t>(index[i].slot)] = true;
    if (!shrinks) resize(slots);
    for (int i = 0; i < index.size(); ++i) {
      WindowIndex::Entry entry = index[i];
      if (entry.slot >= slots) {
        const auto free = std::find(used.begin(), used.end(), false) - used.begin();
        used[static_cast<std::size_t>(free)] = true;
        copy(entry.slot, static_cast<int>(free));
        entry.slot = static_cast<int>(free);
      }
      next.insert(entry);
    }
    if (shrinks) resize(slots);
    index = std::move(next);
  };
  if (!pools_made_) {
    pools_made_ = true;
    full_keys_ = Buffer(*meter_, ByteKind::full, 0);
    full_values_ = Buffer(*meter_, ByteKind::full, 0);
    full_scores_ = Buffer(*meter_, ByteKind::metadata, 0);
    ledger_ = Buffer(*meter_, ByteKind::ledger, 0);
    records_ = Buffer(*meter_, ByteKind::quantized, 0);
    code_scores_ = Buffer(*meter_, ByteKind::metadata, 0);
    head_data_ = Buffer(*meter_, ByteKind::ledger, rule_.head_param_bytes(shape_));
  }
  if (full_slots != full_index_.capacity() || index_bytes != full_index_.entry_bytes()) {
    repack(
        full_index_, full_slots,
        [&](int n) {
          const auto slots = static_cast<std::size_t>(n);
          full_keys_.resize(slots * key_count() * sizeof(Half));
          full_values_.resize(slots * value_count() * sizeof(Half));
          full_scores_.resize(slots * score_floats() * sizeof(float));
          if (rule_.ledger == Ledger::kept) ledger_.resize(slots * payload_);
        },
        [&](int from, int to) {
          std::memcpy(full_keys(to), full_keys(from), key_count() * sizeof(Half));
          std::memcpy(full_values(to), full_values(from), value_count() * sizeof(Half));
          copy_scores(full_scores_, from, to);
          if (rule_.ledger == Ledger::kept) std::copy(ledger(from).begin(), ledger(from).end(), ledger(to).begin());
        });
  }
  if (code_slots != code_index_.capacity() || index_bytes != code_index_.entry_bytes()) {
    repack(
        code_index_, code_slots,
        [&](int n) {
          records_.resize(static_cast<std::size_t>(n) * payload_);
          code_scores_.resize(static_cast<std::size_t>(n) * score_floats() * sizeof(float));
        },
        [&](int from, int to) {
          std::copy(record(from).begin(), record(from).end(), record(to).begin());
          copy_scores(code_scores_, from, to);
        });
  }
}

Result<void> HeadCache::apply(const RoutingPlan& plan, const TokenView& tokens, std::int64_t keep_position,
                              const HeadLayout& new_layout, std::span<const float> weights) {
  if (Result<void> checked = check(plan, tokens, keep_position, new_layout); !checked) return checked;
  Result<Staged> staged = stage(plan, tokens);
  if (!staged) return staged.error();

  if (!routed_) take_sinks(tokens);
  routed_ = true;
  layout_ = new_layout;
  const int most_full = std::max(full_index_.capacity(), new_layout.full_slots);
  const int most_codes = std::max(code_index_.capacity(), new_layout.quantized_slots);
  resize_tiers(most_full, most_codes, WindowIndex::entry_bytes_for(std::max(most_full, most_codes), rule_.max_windows));
  if (!staged->head_data.empty()) {
    head_frozen_ = true;
    std::copy(staged->head_data.begin(), staged->head_data.end(), head_data_.data());
  }
  move_windows(plan, tokens, *staged, weights);
  resize_tiers(new_layout.full_slots, new_layout.quantized_slots, new_layout.index_bytes);
  keep_tail(tokens, keep_position, new_layout.recent_capacity);
  if (rule_.in_cache_positions) show_sinks();
  return {};
}

}  // namespace qevict
