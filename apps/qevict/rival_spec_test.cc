#include <gtest/gtest.h>

#include "rival_llama.h"

namespace qevict::app {
namespace {

std::vector<RivalSpec> parsed(const std::string& text) {
  const Result<std::vector<RivalSpec>> rivals = parse_rivals(text);
  EXPECT_TRUE(rivals.ok()) << text << ": " << (rivals.ok() ? "" : rivals.error().message);
  return rivals.ok() ? *rivals : std::vector<RivalSpec>{};
}

TEST(RivalSpec, DefaultsToF16WithAndWithoutFlashAttention) {
  const std::vector<RivalSpec> both = {{"f16", true}, {"f16", false}};
  EXPECT_EQ(parsed("llama.cpp"), both);
  EXPECT_EQ(parsed("llama.cpp:f16"), both);
  EXPECT_EQ(parsed("llama.cpp:nofa"), (std::vector<RivalSpec>{{"f16", false}}));
}

TEST(RivalSpec, ReadsLists) {
  EXPECT_EQ(parsed("llama.cpp:q8_0,llama.cpp:f16:nofa,llama.cpp:q4_0:fa"),
            (std::vector<RivalSpec>{{"q8_0", true}, {"f16", false}, {"q4_0", true}}));
}

TEST(RivalSpec, RefusesTheRestByName) {
  for (const char* text : {"", "vllm", "llama.cpp:", "llama.cpp,", ",llama.cpp", "llama.cpp:q5_1", "llama.cpp:fa:f16",
                           "llama.cpp:f16:fa:fa", "llama.cpp:q8_0:nofa", "llama.cpp,llama.cpp:f16:fa"}) {
    const Result<std::vector<RivalSpec>> rivals = parse_rivals(text);
    ASSERT_FALSE(rivals.ok()) << text;
    EXPECT_EQ(rivals.error().kind, Error::Kind::invalid);
  }
  EXPECT_NE(parse_rivals("llama.cpp:q5_1").error().message.find("q5_1"), std::string::npos);
}

}  // namespace
}  // namespace qevict::app
