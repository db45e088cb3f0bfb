// Bytes: what a budget buys one KV head (qevict.md section 2; worked examples Q-BYTES). Ratios become bytes here and
// nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cache/zones.h"
#include "codec/codec.h"
#include "qevict/cache_config.h"
#include "qevict/result.h"

namespace qevict {

struct CacheShape {
  int n_layers = 0;
  int n_kv_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  int group = 1;  // query heads of a KV head

  std::size_t heads() const { return static_cast<std::size_t>(n_layers) * static_cast<std::size_t>(n_kv_heads); }
  // f16 key and value of one token of one head.
  std::size_t token_bytes() const { return 2u * static_cast<std::size_t>(key_dim + value_dim); }
  std::size_t full_bytes(std::int64_t n_tokens) const {
    return static_cast<std::size_t>(n_tokens) * heads() * token_bytes();
  }
};

// What becomes of the codes of a promoted window.
enum class Ledger {
  none,  // no quantized tier
  kept,  // preset `paper`: reconstructed f16 values and the codes, both counted
};

// The parts of a method and configuration that decide bytes.
struct LayoutRule {
  Zones zones;                      // recent is filled in by plan_layout
  int recent_tokens = 64;           // automatic recent region: at most so many tokens,
  int recent_per_mille = 250;       // and this share of a head's bytes
  int interval = 8;                 // decode steps between routings
  const CodecRow* codec = nullptr;  // of the quantized tier; null: none
  int quantized_per_mille = 0;
  Ledger ledger = Ledger::none;
  bool ragged = false;                 // heads may have more slots than an equal share would buy
  bool scores = true;                  // accumulators are kept: an f32 per window and per recent token
  int score_power = 1;                 // above 1: an f32 per token of a window instead, whose roots are summed
  bool weights = false;                // an f32 more per window: a factor of its score
  int query_rows = 0;                  // the last queries are kept, f16, of every query head
  bool in_cache_positions = false;     // the sinks' keys are kept once more, turned to stand before the other tokens
  bool everything = false;             // every token is kept: codes have no capacity but the tokens to come
  std::int64_t max_windows = 1 << 20;  // window ids stay below this (context / window)

  WindowShape window_shape(const CacheShape& shape) const {
    return {.tokens = zones.window, .key_dim = shape.key_dim, .value_dim = shape.value_dim};
  }
  std::size_t score_bytes() const { return scores ? sizeof(float) : 0; }  // of one token of the tail
  // Accumulators of one window, then its weight.
  std::size_t accumulators() const {
    return !scores ? 0 : score_power > 1 ? static_cast<std::size_t>(zones.window) : 1;
  }
  std::size_t window_floats() const { return accumulators() + (weights ? 1 : 0); }
  std::size_t payload_bytes(const CacheShape& shape) const {
    return codec ? codec->window_bytes(window_shape(shape)) : 0;
  }
  std::size_t head_param_bytes(const CacheShape& shape) const {
    return codec ? codec->head_bytes(window_shape(shape)) : 0;
  }
  std::size_t query_bytes(const CacheShape& shape) const {
    return 2u * static_cast<std::size_t>(query_rows) * static_cast<std::size_t>(shape.group * shape.key_dim);
  }
  std::size_t shown_sink_bytes(const CacheShape& shape) const {
    return in_cache_positions ? 2u * static_cast<std::size_t>(zones.sinks * shape.key_dim) : 0;
  }
  // What a compressed head takes besides its tokens.
  std::size_t per_head_bytes(const CacheShape& shape) const {
    return head_param_bytes(shape) + query_bytes(shape) + shown_sink_bytes(shape);
  }
};

// Capacities of every head, all alike.
struct HeadLayout {
  Zones zones;                           // with the recent region in force
  int recent_capacity = 0;               // token slots of the f16 region
  int full_slots = 0;                    // windows
  int quantized_slots = 0;               // windows
  std::size_t index_bytes = 4;           // of one entry of the window index: 4, or 8 for very long contexts
  std::size_t fixed_bytes = 0;           // sinks, recent region, frozen parameters, queries
  std::size_t full_slot_bytes = 0;       // with metadata and, preset `paper`, the ledger entry
  std::size_t quantized_slot_bytes = 0;  // with metadata
  std::size_t budget_bytes = 0;          // C_h in force: raised where `recent` is automatic and the budget too small

  std::size_t allocated_bytes() const {
    return fixed_bytes + static_cast<std::size_t>(full_slots) * full_slot_bytes +
           static_cast<std::size_t>(quantized_slots) * quantized_slot_bytes;
  }
};

// When a budget that holds no window is raised to the smallest workable one instead of being refused.
enum class Raise {
  never,             // an absolute budget
  automatic_recent,  // a ratio, unless a `recent` was given that binds
  always,            // a budget that grows with the tokens seen (qevict-examples.md A10)
};

// The layout for head_bytes = C_h. Errors: no window fits and the budget may not be raised; the message names the
// smallest workable budget of the whole cache, and asked_bytes (of the whole cache too; 0: head_bytes of every head).
Result<HeadLayout> plan_layout(const CacheShape& shape, const LayoutRule& rule, const Recent& recent,
                               std::size_t head_bytes, Raise raise, std::size_t asked_bytes = 0);

// The layout of a rule that keeps everything, for n_tokens; its budget is what it allocates.
HeadLayout plan_everything(const CacheShape& shape, const LayoutRule& rule, const Recent& recent,
                           std::int64_t n_tokens);

// Bytes of one head that holds n_tokens in f16 with their accumulators, its queries and nothing else.
std::size_t uncompressed_head_bytes(const CacheShape& shape, const LayoutRule& rule, std::int64_t n_tokens);

// floor(ratio * full): exact for ratios written with up to nine decimals, so that 20 % of 53084160 is 10616832.
std::size_t ratio_of(double ratio, std::size_t full_bytes);

}  // namespace qevict
