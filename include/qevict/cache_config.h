// How a session's KV cache is to behave: the method, its byte budget, and what overrides the method's own row.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "qevict/result.h"

namespace qevict {

// How many bytes the cache may take, all tiers with their metadata. Exactly one of ratio and bytes is set; neither
// means the default: kDefaultBudgetRatio of an f16 cache that holds the whole context.
struct Budget {
  std::optional<double> ratio;       // of the f16 bytes of the base, in (0, 1]
  std::optional<std::size_t> bytes;  // absolute, > 0

  // "20%", "0.5%", "64MiB", "1.5GiB", "8000000" (bytes; also kB, MB, GB, KiB, B). Refuses 0, negative, more than 100 %.
  static Result<Budget> parse(const std::string& text);
  std::string to_string() const;
};
inline constexpr double kDefaultBudgetRatio = 0.20;

// What a ratio refers to.
enum class BudgetBase {
  context,  // the session's context length: the bytes are known, and fixed, before the first token
  request,  // prompt + max_new of the first prefill (qevict.md section 2)
  current,  // the tokens seen so far; the budget grows with them
  prompt,   // the tokens of the prompt; new tokens are kept whole on top, up to max_new, and nothing is routed while
            // decoding (the native form of methods that compress the prompt once)
};

// Newest tokens kept at full precision.
struct Recent {
  enum class Kind {
    automatic,  // max(window, min(64, a quarter of a head's bytes))
    tokens,     // binds: refused if nothing else fits
    per_mille,  // of the head's bytes; binds
  };
  Kind kind = Kind::automatic;
  int value = 0;

  // "auto", "64", "25%".
  static Result<Recent> parse(const std::string& text);
  std::string to_string() const;
};

// Unset fields take the value of the method's row (`qevict methods`).
struct CacheConfig {
  std::string method = "qevict";
  Budget budget;
  std::optional<BudgetBase> budget_base;  // unset: request if a ratio was given and max_new is known, current if a
                                          // ratio was given and it is not; context for the default budget
  std::optional<int> window_tokens;       // routing granularity, 1..256
  std::optional<int> sink_tokens;         // first tokens, full precision, never routed; 0..128
  std::optional<Recent> recent;
  std::optional<int> quantized_per_mille;  // of the routed bytes, to the quantized tier; 0..1000
  std::optional<int> interval_steps;       // decode steps between routings, >= 1
  std::optional<std::string> ranking;      // name of a ranking
  std::optional<double> decay;             // γ of an attention ranking, per token; in (0, 1], 1: cumulative
  std::optional<std::string> codec;        // of the quantized tier; name of a codec
  std::optional<std::string> allocator;    // who shares bytes with whom; name of an allocator
  std::optional<double> floor;             // share of an equal part that every head keeps; in [0, 1]
  std::optional<std::string> weight;       // of values; name of a weight
  std::optional<double>
      quantization_loss;           // share of a window's worth that codes lose, if tiers are split by gain; [0, 1]
  std::optional<double> coverage;  // worth of any window held, in mean scores, for Spending::by_gain; >= 0
  std::optional<bool> promotion;   // false: quantized windows never return to full precision
};

}  // namespace qevict
