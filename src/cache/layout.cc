#include "cache/layout.h"

#include <cmath>

#include "base/check.h"
#include "cache/window_index.h"

namespace qevict {
namespace {

int automatic_recent(const CacheShape& shape, const LayoutRule& rule, std::size_t head_bytes) {
  const std::size_t fixed = rule.query_bytes(shape);
  const std::size_t share = (head_bytes - std::min(head_bytes, fixed)) *
                            static_cast<std::size_t>(rule.recent_per_mille) / 1000 / shape.token_bytes();
  return std::max(rule.zones.window, static_cast<int>(std::min(static_cast<std::size_t>(rule.recent_tokens), share)));
}

int recent_tokens(const CacheShape& shape, const LayoutRule& rule, const Recent& recent, std::size_t head_bytes) {
  switch (recent.kind) {
    case Recent::Kind::automatic:
      return automatic_recent(shape, rule, head_bytes);
    case Recent::Kind::tokens:
      return recent.value;
    case Recent::Kind::per_mille:
      return std::max(
          1, static_cast<int>(head_bytes * static_cast<std::size_t>(recent.value) / 1000 / shape.token_bytes()));
  }
  return 0;
}

void set_slot_bytes(const CacheShape& shape, const LayoutRule& rule, std::size_t index_bytes, HeadLayout& layout) {
  const std::size_t metadata = index_bytes + rule.window_floats() * sizeof(float);
  layout.index_bytes = index_bytes;
  layout.full_slot_bytes = static_cast<std::size_t>(rule.zones.window) * shape.token_bytes() + metadata +
                           (rule.ledger == Ledger::kept ? rule.payload_bytes(shape) : 0);
  layout.quantized_slot_bytes = rule.codec ? rule.payload_bytes(shape) + metadata : 0;
}

HeadLayout layout_with(const CacheShape& shape, const LayoutRule& rule, int recent) {
  HeadLayout layout;
  layout.zones = rule.zones;
  layout.zones.recent = recent;
  layout.recent_capacity = layout.zones.recent_capacity(rule.interval);
  layout.fixed_bytes = static_cast<std::size_t>(rule.zones.sinks) * shape.token_bytes() +
                       static_cast<std::size_t>(layout.recent_capacity) * (shape.token_bytes() + rule.score_bytes()) +
                       rule.per_head_bytes(shape);
  set_slot_bytes(shape, rule, sizeof(std::uint32_t), layout);
  return layout;
}

// Splits the history budget over slots whose index entry takes layout.index_bytes; false if not even one window fits.
bool split_history(const LayoutRule& rule, std::size_t head_bytes, HeadLayout& layout) {
  layout.budget_bytes = head_bytes;
  if (head_bytes < layout.fixed_bytes) return false;
  const std::size_t history = head_bytes - layout.fixed_bytes;
  const std::size_t share = rule.codec ? history / 1000 * static_cast<std::size_t>(rule.quantized_per_mille) +
                                             history % 1000 * static_cast<std::size_t>(rule.quantized_per_mille) / 1000
                                       : 0;
  layout.quantized_slots = rule.codec ? static_cast<int>(share / layout.quantized_slot_bytes) : 0;
  layout.full_slots = static_cast<int>((history - share) / layout.full_slot_bytes);
  return layout.full_slots + layout.quantized_slots >= 1;
}

bool fill_slots(const CacheShape& shape, const LayoutRule& rule, std::size_t head_bytes, HeadLayout& layout) {
  set_slot_bytes(shape, rule, sizeof(std::uint32_t), layout);
  bool fits = split_history(rule, head_bytes, layout);
  const int most_slots =
      rule.ragged ? static_cast<int>(rule.max_windows) : std::max(layout.full_slots, layout.quantized_slots);
  if (WindowIndex::entry_bytes_for(most_slots, rule.max_windows) > sizeof(std::uint32_t)) {
    set_slot_bytes(shape, rule, sizeof(std::uint64_t), layout);
    fits = split_history(rule, head_bytes, layout);
  }
  return fits;
}

// Smallest history bytes that give one window in one tier.
std::size_t smallest_history(const CacheShape& shape, const LayoutRule& rule, const HeadLayout& layout) {
  const auto q = rule.codec ? static_cast<std::size_t>(rule.quantized_per_mille) : 0;
  std::size_t best = SIZE_MAX;
  if (q > 0) best = (layout.quantized_slot_bytes * 1000 + q - 1) / q;
  if (q < 1000) best = std::min(best, (layout.full_slot_bytes * 1000 + (1000 - q) - 1) / (1000 - q));
  // H - floor(q H) can reach a full slot a little earlier than the bound above says.
  while (best > 0) {
    HeadLayout trial = layout;
    if (!fill_slots(shape, rule, layout.fixed_bytes + best - 1, trial)) break;
    --best;
  }
  return best;
}

}  // namespace

Result<HeadLayout> plan_layout(const CacheShape& shape, const LayoutRule& rule, const Recent& recent,
                               std::size_t head_bytes, Raise raise, std::size_t asked_bytes) {
  HeadLayout layout = layout_with(shape, rule, recent_tokens(shape, rule, recent, head_bytes));
  if (fill_slots(shape, rule, head_bytes, layout)) return layout;
  // An automatic recent region makes way for a window, so that more bytes never buy less.
  for (int least = layout.zones.recent - 1; recent.kind == Recent::Kind::automatic && least >= rule.zones.window;
       --least) {
    layout = layout_with(shape, rule, least);
    if (fill_slots(shape, rule, head_bytes, layout)) return layout;
  }

  const int least_recent = recent.kind == Recent::Kind::tokens ? recent.value
                           : recent.kind == Recent::Kind::per_mille && raise != Raise::always
                               ? recent_tokens(shape, rule, recent, head_bytes)
                               : rule.zones.window;
  HeadLayout smallest = layout_with(shape, rule, least_recent);
  const std::size_t needed = smallest.fixed_bytes + smallest_history(shape, rule, smallest);
  if (raise == Raise::always || (raise == Raise::automatic_recent && recent.kind == Recent::Kind::automatic)) {
    QEVICT_CHECK(fill_slots(shape, rule, needed, smallest), "the smallest workable budget holds a window");
    return smallest;
  }
  const std::size_t asked = asked_bytes > 0 ? asked_bytes : head_bytes * shape.heads();
  if (recent.kind == Recent::Kind::tokens) {
    return invalid(
        "a KV budget of {} bytes leaves no window beside {} recent tokens: give at least {} bytes, or fewer recent "
        "tokens",
        asked, recent.value, needed * shape.heads());
  }
  return invalid("a KV budget of {} bytes leaves no window: give at least {} bytes", asked, needed * shape.heads());
}

HeadLayout plan_everything(const CacheShape& shape, const LayoutRule& rule, const Recent& recent,
                           std::int64_t n_tokens) {
  HeadLayout layout = layout_with(shape, rule, recent_tokens(shape, rule, recent, SIZE_MAX / 1000));
  layout.quantized_slots = layout.zones.windows_left(static_cast<int>(n_tokens));
  if (WindowIndex::entry_bytes_for(layout.quantized_slots, rule.max_windows) > sizeof(std::uint32_t))
    set_slot_bytes(shape, rule, sizeof(std::uint64_t), layout);
  layout.budget_bytes = layout.allocated_bytes();
  return layout;
}

std::size_t uncompressed_head_bytes(const CacheShape& shape, const LayoutRule& rule, std::int64_t n_tokens) {
  return static_cast<std::size_t>(n_tokens) * (shape.token_bytes() + rule.score_bytes()) + rule.query_bytes(shape);
}

std::size_t ratio_of(double ratio, std::size_t full_bytes) {
  constexpr std::size_t kBillion = 1000000000;
  const auto billionths = static_cast<std::size_t>(std::llround(ratio * 1e9));
  return full_bytes / kBillion * billionths + full_bytes % kBillion * billionths / kBillion;
}

}  // namespace qevict
