// The method table, as programs may list it. One row = one system of the paper or one rival (docs/design.md).
#pragma once

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
  int interval_steps = 8;
  int quantized_per_mille = 0;  // share of the routed bytes for the quantized tier
  std::string_view codec;       // of the quantized tier, "" if there is none
  std::string_view ranking;     // "cumulative", ...
  bool value_weight = false;    // scores are multiplied by the L2 norms of the values
  std::string_view allocator = "equal";
  double floor = 0.2;  // of a shared allocator: the share of an equal part that every head keeps
  Spending spending = Spending::fixed_share;
  bool promotion = false;             // quantized windows may return to full precision
  bool quantizes_everything = false;  // no budget makes it equal to `full`
};

std::span<const Method> methods();
// Null if there is none of that name.
const Method* find_method(std::string_view name);

// The other named parts, for help texts and errors.
std::span<const std::string_view> ranking_names();
std::string_view ranking_summary(std::string_view name);
std::span<const std::string_view> allocator_names();
std::string_view allocator_summary(std::string_view name);
std::span<const std::string_view> codec_names();
std::string_view codec_summary(std::string_view name);

}  // namespace qevict
