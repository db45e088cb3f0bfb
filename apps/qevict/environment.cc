#include "environment.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <numeric>

#include "messages.h"

namespace qevict::app {
namespace {

constexpr std::string_view kPrefix = "QEVICT_";
// Read by setup/, the Makefile, CMake and the tests, not by the program.
constexpr std::string_view kForeign[] = {"QEVICT_SYSTEM_LLAMA", "QEVICT_DEPS", "QEVICT_DEFAULT_MODEL"};
constexpr std::string_view kForeignPrefixes[] = {"QEVICT_TEST_", "QEVICT_BUILD_", "QEVICT_CI_"};

bool is_foreign(std::string_view name) {
  return std::ranges::find(kForeign, name) != std::end(kForeign) ||
         std::ranges::any_of(kForeignPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string variable_name(std::string_view long_flag) {
  while (long_flag.starts_with('-')) long_flag.remove_prefix(1);
  std::string name(kPrefix);
  for (const char c : long_flag)
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

Result<void> check_environment(const std::vector<std::string>& known) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(kPrefix) || is_foreign(name) || std::ranges::find(known, name) != known.end()) continue;
    const std::string near = nearest(name, known);
    return invalid("unknown environment variable {}{}", name,
                   near.empty() ? std::string("; every long option has one, as QEVICT_KV_BUDGET for --kv-budget")
                                : fmt::format("; did you mean {}?", near));
  }
  return {};
}

std::string nearest(std::string_view name, const std::vector<std::string>& names) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(3, name.size() / 3) + 1;
  for (const std::string& candidate : names) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace qevict::app
