#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "model/text.h"
#include "model/utf8.h"

namespace qevict {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr std::size_t kLongest = 4;                        // bytes of a character

// Bytes of the valid character at the start of text, or 0.
std::size_t character_bytes(std::string_view text) {
  utf8proc_int32_t character = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const utf8proc_ssize_t count = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size()), &character);
  return count > 0 ? static_cast<std::size_t>(count) : 0;
}

// Whether more bytes could make a valid character of these. The first continuation byte is restricted after some lead
// bytes, always to a range that ends at 0x80 or 0xBF.
bool can_begin(std::string_view part) {
  for (const char filler : {'\x80', '\xBF'}) {
    std::array<char, kLongest> completed;
    completed.fill(filler);
    std::copy(part.begin(), part.end(), completed.begin());
    if (character_bytes({completed.data(), completed.size()}) > part.size()) return true;
  }
  return false;
}

// Longest beginning of text that could still become a character (Unicode's "maximal subpart"), at least 1.
std::size_t subpart_bytes(std::string_view text) {
  std::size_t longest = 1;
  for (std::size_t count = 1; count < std::min(kLongest, text.size() + 1) && can_begin(text.substr(0, count)); ++count)
    longest = count;
  return longest;
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t count = character_bytes(text.substr(at, kLongest));
    if (count == 0) return at;
    at += count;
  }
  return std::nullopt;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string complete;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    std::size_t count = character_bytes(rest.substr(0, kLongest));
    if (count > 0) {
      complete += rest.substr(0, count);
    } else {
      if (rest.size() < kLongest && can_begin(rest)) break;
      count = subpart_bytes(rest);
      complete += kReplacement;
    }
    rest.remove_prefix(count);
  }
  pending_ = std::string(rest);
  return complete;
}

std::string Utf8Stream::flush() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return cut ? std::string(kReplacement) : std::string();
}

}  // namespace qevict
