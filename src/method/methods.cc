// The method table. Adding a method is adding a row here (docs/design.md, CONTRIBUTING.md); if one does not fit, extend
// the row's vocabulary, not the callers.
#include <algorithm>
#include <vector>

#include "codec/codec.h"
#include "qevict/method.h"
#include "ranking/ranking.h"
#include "routing/allocator.h"

namespace qevict {
namespace {

constexpr std::string_view kQevict = "arXiv 2608.05326";

constexpr Method kMethods[] = {
    {.name = "full", .summary = "everything, f16; the reference", .paper = "", .compresses = false, .ranking = ""},
    {.name = "qevict",
     .summary = "windows of 8 as 3-bit keys and 2-bit values, f16 where it gains more, rest evicted",
     .paper = "beyond arXiv 2608.05326 (docs/design.md)",
     .quantized_per_mille = 700,
     .codec = "k3v2",
     .ranking = "blended",
     .spending = Spending::by_gain},
    {.name = "qevict-paper",
     .summary = "best windows f16, next ones INT2 and recoverable, rest evicted (the paper's R3)",
     .paper = kQevict,
     .quantized_per_mille = 700,
     .codec = "int2",
     .ranking = "cumulative",
     .promotion = true},
    {.name = "qevict-paper-int4",
     .summary = "as qevict-paper with an INT4 tier",
     .paper = kQevict,
     .quantized_per_mille = 700,
     .codec = "int4",
     .ranking = "cumulative",
     .promotion = true},
    {.name = "qevict-paper-no-promotion",
     .summary = "as qevict-paper, but quantized windows never return (the paper's ablation K)",
     .paper = kQevict,
     .quantized_per_mille = 700,
     .codec = "int2",
     .ranking = "cumulative",
     .promotion = false},
    {.name = "r1",
     .summary = "the paper's R1: single tokens kept in f16 or evicted",
     .paper = kQevict,
     .window_tokens = 1,
     .ranking = "cumulative"},
    {.name = "r2",
     .summary = "the paper's R2: windows of 8 kept in f16 or evicted",
     .paper = kQevict,
     .ranking = "cumulative"},
    {.name = "r4",
     .summary = "the paper's R4: qevict-paper with windows and routing interval of 32",
     .paper = kQevict,
     .window_tokens = 32,
     .interval_steps = 32,
     .quantized_per_mille = 700,
     .codec = "int2",
     .ranking = "cumulative",
     .promotion = true},
    {.name = "streaming-llm",
     .summary = "the first 5 and the newest tokens, f16, at their true positions",
     .paper = "arXiv 2309.17453",
     .window_tokens = 1,
     .interval_steps = 1,
     .ranking = "recency"},
};

}  // namespace

std::span<const Method> methods() { return kMethods; }

const Method* find_method(std::string_view name) {
  const auto row =
      std::find_if(std::begin(kMethods), std::end(kMethods), [&](const Method& m) { return m.name == name; });
  return row == std::end(kMethods) ? nullptr : row;
}

namespace {

template <class Rows>
std::vector<std::string_view> names_of(const Rows& rows) {
  std::vector<std::string_view> names;
  for (const auto& row : rows) names.push_back(row.name);
  return names;
}

template <class Row>
std::string_view summary_of(const Row* row) {
  return row == nullptr ? std::string_view{} : row->summary;
}

}  // namespace

std::span<const std::string_view> ranking_names() {
  static const std::vector<std::string_view> names = names_of(rankings());
  return names;
}
std::string_view ranking_summary(std::string_view name) { return summary_of(find_ranking(name)); }

std::span<const std::string_view> allocator_names() {
  static const std::vector<std::string_view> names = names_of(allocators());
  return names;
}
std::string_view allocator_summary(std::string_view name) { return summary_of(find_allocator(name)); }

std::span<const std::string_view> codec_names() {
  static const std::vector<std::string_view> names = names_of(codecs());
  return names;
}
std::string_view codec_summary(std::string_view name) { return summary_of(find_codec(name)); }

}  // namespace qevict
