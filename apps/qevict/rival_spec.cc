#include <algorithm>
#include <sstream>

#include "messages.h"
#include "rival_llama.h"

namespace qevict::app {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  if (text.ends_with(at)) parts.emplace_back();
  return parts;
}

constexpr const char* kForm = "llama.cpp[:f16|q8_0|q4_0][:fa|nofa]";

Result<std::vector<RivalSpec>> parse_one(const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.empty() || parts.front() != "llama.cpp") return invalid("'{}' is not of the form {}", text, kForm);
  std::size_t next = 1;
  RivalSpec spec;
  if (next < parts.size() && std::ranges::find(kRivalKvTypes, parts[next]) != std::end(kRivalKvTypes)) {
    spec.kv_type = parts[next++];
  }
  const bool chosen = next < parts.size() && (parts[next] == "fa" || parts[next] == "nofa");
  if (chosen) spec.flash_attention = parts[next++] == "fa";
  if (next < parts.size()) return invalid("'{}' in '{}' is unknown; the form is {}", parts[next], text, kForm);
  const bool quantized = spec.kv_type != "f16";
  if (quantized && !spec.flash_attention) {
    return invalid("'{}': llama.cpp quantizes its cache only with flash attention", text);
  }
  if (chosen || quantized) return std::vector<RivalSpec>{spec};
  return std::vector<RivalSpec>{{spec.kv_type, true}, {spec.kv_type, false}};
}

}  // namespace

Result<std::vector<RivalSpec>> parse_rivals(const std::string& text) {
  std::vector<RivalSpec> all;
  for (const std::string& part : split(text, ',')) {
    const Result<std::vector<RivalSpec>> some = parse_one(part);
    if (!some) return some.error();
    for (const RivalSpec& spec : *some) {
      if (std::ranges::find(all, spec) != all.end()) return invalid("'{}' is there twice", part);
      all.push_back(spec);
    }
  }
  if (all.empty()) return invalid("names no rival; the form is {}", kForm);
  return all;
}

}  // namespace qevict::app
