// Reading budgets and recent regions as users write them.
#include "qevict/cache_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace qevict {
namespace {

struct Number {
  double value = 0;
  std::string unit;
};

// A plain decimal number and what follows it; nullopt if there is no finite number.
std::optional<Number> parse_number(const std::string& text) {
  Number number;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number.value, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number.value)) return std::nullopt;
  number.unit.assign(rest, end);
  return number;
}

}  // namespace

Result<Budget> Budget::parse(const std::string& text) {
  const std::optional<Number> number = parse_number(text);
  constexpr const char* kExpected = "expected a share of the full cache such as 20%, or bytes such as 64MiB";
  if (!number) return invalid("KV budget \"{}\" is not a number: {}", text, kExpected);
  if (!(number->value > 0)) return invalid("KV budget \"{}\" must be above 0: {}", text, kExpected);
  if (number->unit == "%") {
    if (number->value > 100) return invalid("KV budget \"{}\" is more than the full cache: give at most 100%", text);
    if (number->value < 1e-7) return invalid("KV budget \"{}\" is too small to hold anything: {}", text, kExpected);
    return Budget{.ratio = number->value / 100};
  }
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"", 1},         {"B", 1},      {"kB", 1e3},     {"KB", 1e3},
                             {"MB", 1e6},     {"GB", 1e9},   {"KiB", 0x1p10}, {"MiB", 0x1p20},
                             {"GiB", 0x1p30}, {"K", 0x1p10}, {"M", 0x1p20},   {"G", 0x1p30}};
  const auto unit =
      std::find_if(std::begin(kUnits), std::end(kUnits), [&](const Unit& u) { return number->unit == u.name; });
  if (unit == std::end(kUnits)) return invalid("KV budget \"{}\" has an unknown unit: {}", text, kExpected);
  const double bytes = std::floor(number->value * unit->bytes);
  if (bytes < 1 || bytes > 0x1p52) return invalid("KV budget \"{}\" is out of range: {}", text, kExpected);
  return Budget{.bytes = static_cast<std::size_t>(bytes)};
}

std::string Budget::to_string() const {
  if (ratio) return fmt::format("{}%", *ratio * 100);
  if (bytes) return *bytes % (1u << 20) == 0 ? fmt::format("{}MiB", *bytes >> 20) : fmt::format("{}", *bytes);
  return fmt::format("{}%", kDefaultBudgetRatio * 100);
}

Result<Recent> Recent::parse(const std::string& text) {
  if (text == "auto") return Recent{};
  const std::optional<Number> number = parse_number(text);
  constexpr const char* kExpected =
      "expected auto, a number of tokens such as 64, or a share of the budget such as 25%";
  if (!number) return invalid("recent region \"{}\" is not a number: {}", text, kExpected);
  if (number->unit == "%") {
    if (number->value < 0 || number->value >= 100)
      return invalid("recent region \"{}\" is out of range: {}", text, kExpected);
    return Recent{.kind = Kind::per_mille, .value = static_cast<int>(std::lround(number->value * 10))};
  }
  if (!number->unit.empty() || number->value != std::floor(number->value) || number->value < 0 || number->value > 1e6) {
    return invalid("recent region \"{}\" is out of range: {}", text, kExpected);
  }
  return Recent{.kind = Kind::tokens, .value = static_cast<int>(number->value)};
}

std::string Recent::to_string() const {
  switch (kind) {
    case Kind::automatic:
      return "auto";
    case Kind::tokens:
      return fmt::format("{}", value);
    case Kind::per_mille:
      return fmt::format("{}%", value / 10.0);
  }
  return {};
}

}  // namespace qevict
