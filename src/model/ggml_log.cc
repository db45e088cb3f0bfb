#include "model/ggml_log.h"

#include <mutex>
#include <string_view>

#include "ggml.h"
#include "llama.h"
#include "model/text.h"

namespace qevict {
namespace {

constexpr std::size_t kMaxRecord = 2000;  // bytes; a damaged file can make ggml log a line per tensor
thread_local std::string errors;
thread_local bool in_error = false;

// "gguf_init_from_reader: failed to read magic\n" -> "failed to read magic".
std::string_view without_function(std::string_view line) {
  const std::size_t colon = line.find(": ");
  const bool is_name =
      colon != std::string_view::npos &&
      line.substr(0, colon).find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") == std::string_view::npos;
  return is_name ? line.substr(colon + 2) : line;
}

void record(ggml_log_level level, const char* text, void*) {
  if (level != GGML_LOG_LEVEL_CONT) in_error = level == GGML_LOG_LEVEL_ERROR;
  if (!in_error || text == nullptr || errors.size() > kMaxRecord) return;
  std::string_view line = text;
  if (level != GGML_LOG_LEVEL_CONT) {
    line = without_function(line);
    if (!errors.empty()) errors += "; ";
  }
  for (const char c : line)
    if (c != '\n') errors += c;
}

}  // namespace

void route_llama_log() {
  static std::once_flag once;
  std::call_once(once, [] { llama_log_set(&record, nullptr); });
}

std::string take_log_errors() {
  std::string taken;
  taken.swap(errors);
  in_error = false;
  return taken;
}

}  // namespace qevict
