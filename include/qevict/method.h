// The method table, as programs may list it. One row = one system of the paper or one rival (docs/design.md).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace qevict {

// How a head's history bytes are split between the full and the quantized tier.
enum class Spending {
  fixed_share,  // quantized_per_mille of them to the quantized tier (the paper)
  by_gain,      // by marginal gain of attention kept, anew every few routings (docs/design.md)
};

struct Method {
  std::string_view name;     // as users type it: "qevict-paper"
  std::string_view summary;  // one line: what it keeps
  std::string_view paper;    // arXiv number and section, or ""
  bool compresses = true;    // false: the full cache, no routing
  int window_tokens = 8;
  int sink_tokens = 5;
  // Newest tokens kept where the user does not say: at most this many, and this share of a head's bytes.
  int recent_tokens = 64;
  int recent_per_mille = 250;
  int interval_steps = 8;
  int quantized_per_mille = 0;       // share of the routed bytes for the quantized tier
  std::string_view codec;            // of the quantized tier, "" if there is none
  std::string_view ranking;          // "cumulative", ...
  std::string_view weight = "none";  // what of a value its token's score is multiplied by
  // Above 0: this share of a head's windows is taken by score alone, and only the rest by score times weight
  // (CriticalKV).
  int first_stage_per_mille = 0;
  std::string_view allocator = "equal";
  double floor = 0.2;    // of a shared allocator: the share of an equal part that every head keeps
  int split_events = 8;  // routings of a turn between two splits of the bytes over heads or tiers; 0: only at its start
  Spending spending = Spending::fixed_share;
  bool promotion = false;  // quantized windows may return to full precision
  bool quantizes_everything =
      false;                        // keeps every token, as codes once it is old: takes no budget, and is never `full`
  bool in_cache_positions = false;  // sinks stand right before the other tokens held (StreamingLLM's own positions)

  bool takes_budget() const { return compresses && !quantizes_everything; }
};

std::span<const Method> methods();
// Null if there is none of that name.
const Method* find_method(std::string_view name);

// Exact bytes of one token of one KV head, metadata included, and what a head takes besides.
struct MethodBytes {
  double full = 0;           // in f16; 0: there is no such tier
  double quantized = 0;      // in codes; 0: there is no such tier
  std::size_t per_head = 0;  // frozen parameters and kept queries; sinks and the newest tokens cost `newest` each
  double newest = 0;         // of a sink or recent token
};
// For heads of head_dim channels and query_heads query heads each, in a context below 2^20 windows. f16 alone takes
// 4 * head_dim.
MethodBytes method_bytes(const Method& method, int head_dim, int query_heads);

// The other named parts, for help texts and errors.
std::span<const std::string_view> ranking_names();
std::string_view ranking_summary(std::string_view name);
std::span<const std::string_view> allocator_names();
std::string_view allocator_summary(std::string_view name);
std::span<const std::string_view> codec_names();
std::string_view codec_summary(std::string_view name);
std::span<const std::string_view> weight_names();
std::string_view weight_summary(std::string_view name);

}  // namespace qevict
