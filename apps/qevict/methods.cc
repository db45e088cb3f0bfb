// qevict methods: the method table.
#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "messages.h"
#include "summary.h"
#include "terminal.h"

namespace qevict::app {
namespace {

struct Group {
  std::string_view title;
  bool (*holds)(const Method&);
};

// Every row falls into exactly one.
constexpr Group kGroups[] = {
    {"Full cache", [](const Method& m) { return !m.compresses; }},
    {"Recoverable: full, quantized and evicted windows",
     [](const Method& m) { return m.compresses && !m.codec.empty() && !m.quantizes_everything; }},
    {"Eviction only", [](const Method& m) { return m.compresses && m.codec.empty(); }},
    {"Quantization only", [](const Method& m) { return m.compresses && !m.codec.empty() && m.quantizes_everything; }},
};

std::string table() {
  std::size_t width = 0;
  for (const Method& method : methods()) width = std::max(width, method.name.size());
  std::string text;
  for (const Group& group : kGroups) {
    if (std::ranges::none_of(methods(), group.holds)) continue;
    text += fmt::format("{}{}\n", text.empty() ? "" : "\n", group.title);
    for (const Method& method : methods()) {
      if (!group.holds(method)) continue;
      text += fmt::format("  {:<{}}  {}{}\n", method.name, width, method.summary,
                          method.name == CacheConfig{}.method ? " (default)" : "");
    }
  }
  const auto part = [&](std::string_view title, std::span<const std::string_view> names,
                        std::string_view (*summary)(std::string_view)) {
    text += fmt::format("\n{}\n", title);
    for (const std::string_view name : names) text += fmt::format("  {:<{}}  {}\n", name, width, summary(name));
  };
  part("Rankings (--kv-ranking)", ranking_names(), &ranking_summary);
  part("Codecs (--kv-codec)", codec_names(), &codec_summary);
  part("Allocators (--kv-allocator)", allocator_names(), &allocator_summary);
  return text;
}

Json rows() {
  Json all = Json::array();
  for (const Method& method : methods()) {
    all.push_back({{"name", method.name},
                   {"summary", method.summary},
                   {"paper", method.paper},
                   {"compresses", method.compresses},
                   {"window_tokens", method.window_tokens},
                   {"sink_tokens", method.sink_tokens},
                   {"interval_steps", method.interval_steps},
                   {"quantized_per_mille", method.quantized_per_mille},
                   {"codec", method.codec},
                   {"ranking", method.ranking},
                   {"value_weight", method.value_weight},
                   {"allocator", method.allocator},
                   {"spending", method.spending == Spending::by_gain ? "by_gain" : "fixed_share"},
                   {"promotion", method.promotion},
                   {"quantizes_everything", method.quantizes_everything}});
  }
  return all;
}

}  // namespace

Command add_methods(CLI::App& command, Options& options) {
  add_json_option(command, options);
  return [&options] {
    Output output;
    output.write(options.json ? to_text(rows(), 2) + "\n" : table());
    const Result<void> written = output.status();
    return written ? kExitOk : fail(written.error());
  };
}

}  // namespace qevict::app
