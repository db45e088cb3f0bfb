// Peak resident memory of one engine above the weights, in a process of its own (evaluation.md 6.3): this program again
// with the same arguments and one more that names the engine and the depth.
#pragma once

#include <cstddef>
#include <string>

#include "qevict/result.h"

namespace qevict::app {

struct RssTask {
  std::size_t engine = 0;  // in the order of the rows
  int depth = 0;

  static Result<RssTask> parse(const std::string& text);
  std::string to_string() const;  // "1,7680"
};
inline constexpr const char* kRssFlag = "--rss-of";

// Runs that process and reads the number it prints.
Result<std::size_t> measure_rss(const RssTask& task);

}  // namespace qevict::app
