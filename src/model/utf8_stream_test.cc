#include <gtest/gtest.h>

#include <random>

#include "model/text.h"
#include "model/utf8.h"

namespace qevict {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

std::string streamed(const std::string& bytes, std::size_t step) {
  Utf8Stream stream;
  std::string joined;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    const std::string piece = stream.push(bytes.substr(at, step));
    EXPECT_FALSE(first_invalid_utf8(piece)) << "a piece is not valid by itself";
    joined += piece;
  }
  return joined + stream.flush();
}

TEST(Utf8Stream, HoldsACharacterBackUntilItIsComplete) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80z"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Utf8Stream, ReplacesEachBrokenCharacterOnce) {
  const std::pair<std::string, std::string> cases[] = {
      {"a\x80"
       "b",
       "a" + kBad + "b"},  // a lone continuation
      {"\xE2\x82", kBad},  // cut at the end: flush
      {"\xE2\x82"
       "x",
       kBad + "x"},  // cut in the middle
      {"\xF0\x9F\x98"
       "\xC3\xA9",
       kBad + "\xC3\xA9"},                              // cut by another character
      {"\xC0\xAF", kBad + kBad},                        // overlong: C0 never begins a character
      {"\xED\xA0\x80", kBad + kBad + kBad},             // a surrogate
      {"\xF4\x90\x80\x80", kBad + kBad + kBad + kBad},  // beyond U+10FFFF
      {"\xFF\xFE", kBad + kBad},
      {std::string("a\0b", 3), std::string("a\0b", 3)},
      {"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF", "\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"},  // edges of ranges
  };
  for (const auto& [bytes, expected] : cases)
    for (std::size_t step = 1; step <= bytes.size(); ++step) EXPECT_EQ(streamed(bytes, step), expected);
}

TEST(Utf8Stream, AnyBytesInAnyPiecesGiveTheSameValidText) {
  std::mt19937 random(11);
  const std::string alphabet = "a\x80\xBF\xC2\xC3\xE0\xA0\xE2\xED\x9F\xEF\xF0\x90\xF4\x8F\xFF";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 12; ++i) bytes += alphabet[random() % alphabet.size()];
    const std::string whole = streamed(bytes, bytes.size());
    EXPECT_FALSE(first_invalid_utf8(whole));
    for (std::size_t step = 1; step < bytes.size(); ++step) ASSERT_EQ(streamed(bytes, step), whole);
  }
}

TEST(FirstInvalidUtf8, NamesTheOffset) {
  EXPECT_EQ(first_invalid_utf8("plain \xC3\xA9"), std::nullopt);
  EXPECT_EQ(first_invalid_utf8("ab\xFF"), 2u);
  EXPECT_EQ(first_invalid_utf8("\xC3\xA9\xE2\x82"), 2u);
}

}  // namespace
}  // namespace qevict
