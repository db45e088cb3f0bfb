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
  std::vector<float> scores;       // of windows that move between tiers
};

void HeadCache::load_window(std::int64_t window, const Half* keys, const Half* values, std::span<float> k,
                            std::span<float> v) const {
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = to_float(keys[i]);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = to_float(values[i]);
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
    // Estimated over every window that is a candidate at this event, evicted ones included (qevict-examples.md A15).
    std::vector<float> all_keys, all_values;
    const auto add = [&](const TierMove& move) {
      load(move, keys, values);
      all_keys.insert(all_keys.end(), keys.begin(), keys.end());
      all_values.insert(all_values.end(), values.begin(), values.end());
    };
    for (int i = 0; i < full_index_.size(); ++i) add({full_index_[i].window, Tier::full, Tier::quantized});
    for (const TierMove& move : plan.moves) {
      if (move.from == Tier::none) add(move);
    }
    staged.head_data.resize(head_bytes);
    rule_.codec->estimate_head(rule_.window_shape(shape_), all_keys, all_values, staged.head_data);
    head_data = staged.head_data;
  }

  staged.records.resize(plan.moves.size() * payload_);
  staged.scores.resize(plan.moves.size());
  for (std::size_t i = 0; i < plan.moves.size(); ++i) {
    const TierMove& move = plan.moves[i];
    const std::span<std::byte> codes = std::span(staged.records).subspan(i * payload_, payload_);
    if (move.from == Tier::full || move.from == Tier::quantized) {
      const bool full = move.from == Tier::full;
      const WindowIndex& index = full ? full_index_ : code_index_;
      const WindowIndex::Entry entry = index[index.lower_bound(move.window)];
      if (rule_.scores) staged.scores[i] = (full ? full_scores_ : code_scores_).as<float>()[entry.slot];
      if (full ? entry.ledger && move.to == Tier::quantized : move.to == Tier::full) {
        std::ranges::copy(full ? ledger(entry.slot) : record(entry.slot), codes.begin());
        continue;
      }
    }
    if (move.to != Tier::quantized) continue;
    load(move, keys, values);
    if (!rule_.codec->encode(rule_.window_shape(shape_), keys, values, head_data, codes)) {
      return error_of(Error::Kind::internal, "a key or value of window {} is not finite", move.window);
    }
  }
  return staged;
}

void HeadCache::move_windows(const RoutingPlan& plan, const TokenView& tokens, const Staged& staged) {
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
  const auto into_codes = [&](const TierMove& move, float score) {
    const int slot = take_slot(free_codes);
    std::ranges::copy(codes_of(move), record(slot).begin());
    if (rule_.scores) code_scores_.as<float>()[slot] = score;
    code_index_.insert({.window = move.window, .slot = slot, .ledger = false});
  };
  const auto score_of = [&](const TierMove& move) {
    return staged.scores[static_cast<std::size_t>(&move - plan.moves.data())];
  };
  for (const TierMove& move : plan.moves) {
    if (move.from != Tier::full || move.to != Tier::quantized) continue;
    leave_full(move);
    into_codes(move, score_of(move));
  }
  for (const TierMove& move : plan.moves) {
    if (move.from != Tier::quantized || move.to != Tier::full) continue;
    // Promotion restores residency, not the original values: f16 of the codes, rotated at their own positions.
    const int slot = take_slot(free_full);
    const std::span<const std::byte> codes = codes_of(move);
    rule_.codec->decode(rule_.window_shape(shape_), codes, {head_data_.data(), head_data_.size()}, keys, values);
    window_rotation(*rope_, rule_.zones.window)
        .rotate(keys, shape_.key_dim, rule_.zones.sinks + rule_.zones.window * move.window);
    std::transform(keys.begin(), keys.end(), full_keys(slot), to_half_saturated);
    std::transform(values.begin(), values.end(), full_values(slot), to_half_saturated);
    std::ranges::copy(codes, ledger(slot).begin());
    if (rule_.scores) full_scores_.as<float>()[slot] = score_of(move);
    full_index_.insert({.window = move.window, .slot = slot, .ledger = true});
  }
  for (const TierMove& move : plan.moves) {
    if (move.from != Tier::none) continue;
    ++next_window_;
    const auto at =
        static_cast<std::size_t>(rule_.zones.sinks + rule_.zones.window * move.window - tokens.first_position);
    float score = 0.0f;
    if (rule_.scores) {
      for (int t = 0; t < rule_.zones.window; ++t) score += tokens.scores[at + static_cast<std::size_t>(t)];
    }
    if (move.to == Tier::quantized) into_codes(move, score);
    if (move.to != Tier::full) continue;
    const int slot = take_slot(free_full);
    std::memcpy(full_keys(slot), tokens.keys.data() + at * key_dim, key_count() * sizeof(Half));
    std::memcpy(full_values(slot), tokens.values.data() + at * static_cast<std::size_t>(shape_.value_dim),
                value_count() * sizeof(Half));
    if (rule_.scores) full_scores_.as<float>()[slot] = score;
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

// Grows or shrinks the pools. A shrinking pool is repacked, so that the surviving windows lie in the slots that stay.
void HeadCache::resize_tiers(int full_slots, int code_slots, std::size_t index_bytes) {
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
          if (rule_.scores) full_scores_.resize(slots * sizeof(float));
          if (rule_.ledger == Ledger::kept) ledger_.resize(slots * payload_);
        },
        [&](int from, int to) {
          std::memcpy(full_keys(to), full_keys(from), key_count() * sizeof(Half));
          std::memcpy(full_values(to), full_values(from), value_count() * sizeof(Half));
          if (rule_.scores) full_scores_.as<float>()[to] = full_scores_.as<float>()[from];
          if (rule_.ledger == Ledger::kept) std::copy(ledger(from).begin(), ledger(from).end(), ledger(to).begin());
        });
  }
  if (code_slots != code_index_.capacity() || index_bytes != code_index_.entry_bytes()) {
    repack(
        code_index_, code_slots,
        [&](int n) {
          records_.resize(static_cast<std::size_t>(n) * payload_);
          if (rule_.scores) code_scores_.resize(static_cast<std::size_t>(n) * sizeof(float));
        },
        [&](int from, int to) {
          std::copy(record(from).begin(), record(from).end(), record(to).begin());
          if (rule_.scores) code_scores_.as<float>()[to] = code_scores_.as<float>()[from];
        });
  }
}

Result<void> HeadCache::apply(const RoutingPlan& plan, const TokenView& tokens, std::int64_t keep_position,
                              const HeadLayout& new_layout) {
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
  move_windows(plan, tokens, *staged);
  resize_tiers(new_layout.full_slots, new_layout.quantized_slots, new_layout.index_bytes);
  keep_tail(tokens, keep_position, new_layout.recent_capacity);
  return {};
}

}  // namespace qevict
