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

// Of one token of a head of 64 channels: in f16, in codes.
std::string bytes_text_of(const Method& method) {
  const MethodBytes bytes = method_bytes(method, 64, 1);
  if (bytes.full > 0 && bytes.quantized > 0) return fmt::format("{:.0f}, {:.0f}", bytes.full, bytes.quantized);
  return fmt::format("{:.0f}", std::max(bytes.full, bytes.quantized));
}

std::string table() {
  std::size_t width = 0;
  for (const Method& method : methods()) width = std::max(width, method.name.size());
  std::string text;
  for (const Group& group : kGroups) {
    if (std::ranges::none_of(methods(), group.holds)) continue;
    text += text.empty() ? fmt::format("{:<{}}  {:>9}\n", group.title, width + 2, "bytes")
                         : fmt::format("\n{}\n", group.title);
    for (const Method& method : methods()) {
      if (!group.holds(method)) continue;
      text += fmt::format("  {:<{}}  {:>9}  {}{}\n", method.name, width, bytes_text_of(method), method.summary,
                          method.name == CacheConfig{}.method ? " (default)" : "");
    }
  }
  const auto part = [&](std::string_view title, std::span<const std::string_view> names,
                        std::string_view (*summary)(std::string_view)) {
    text += fmt::format("\n{}\n", title);
    for (const std::string_view name : names) text += fmt::format("  {:<{}}  {}\n", name, width, summary(name));
  };
  text += "\nbytes: of a token of a head of 64 channels, in f16 and in codes, with its metadata; f16 alone is 256\n";
  part("Rankings (--kv-ranking)", ranking_names(), &ranking_summary);
  part("Codecs (--kv-codec)", codec_names(), &codec_summary);
  part("Value weights (--kv-weight)", weight_names(), &weight_summary);
  part("Allocators (--kv-allocator)", allocator_names(), &allocator_summary);
  return text;
}

Json bytes_json(const MethodBytes& bytes) {
  Json json = {{"newest", bytes.newest}, {"per_head", bytes.per_head}};
  if (bytes.full > 0) json["full"] = bytes.full;
  if (bytes.quantized > 0) json["quantized"] = bytes.quantized;
  return json;
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
                   {"recent_tokens", method.recent_tokens},
                   {"recent_per_mille", method.recent_per_mille},
                   {"weight", method.weight},
                   {"first_stage_per_mille", method.first_stage_per_mille},
                   {"floor", method.floor},
                   {"split_events", method.split_events},
                   {"in_cache_positions", method.in_cache_positions},
                   {"allocator", method.allocator},
                   {"spending", method.spending == Spending::by_gain ? "by_gain" : "fixed_share"},
                   {"promotion", method.promotion},
                   {"quantizes_everything", method.quantizes_everything},
                   {"bytes_per_token",
                    {{"head_dim_64", bytes_json(method_bytes(method, 64, 3))},
                     {"head_dim_128", bytes_json(method_bytes(method, 128, 4))}}}});
  }
  return all;
}

}  // namespace

Command add_methods(CLI::App& command, Options& options) {
  add_json_option(command, options);
  command.get_option("--json")->description("a JSON array of the methods on standard output in place of text");
  return [&options] {
    Output output;
    output.write(options.json ? to_text(rows(), 2) + "\n" : table());
    const Result<void> written = output.status();
    return written ? kExitOk : fail(written.error());
  };
}

}  // namespace qevict::app
