#include "conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace qevict::app {
namespace {

using ::testing::ElementsAre;

constexpr Token kEnd = 1000;

// A template like ChatML, and a tokenizer whose tokens are the text's bytes ('$' is the end-of-turn token).
Result<std::string> render(std::span<const ChatMessage> messages, bool add_assistant) {
  std::string text;
  for (const ChatMessage& message : messages) {
    std::string content = message.content;  // trimmed, as many templates do
    while (content.ends_with(' ')) content.pop_back();
    text += "<" + message.role.substr(0, 1) + ">" + content + "$";
  }
  return add_assistant ? text + "<a>" : text;
}

Result<std::vector<Token>> tokenize(std::string_view text, bool add_special) {
  std::vector<Token> tokens;
  if (add_special) tokens.push_back(1);
  for (const char c : text) tokens.push_back(c == '$' ? kEnd : c);
  return tokens;
}

std::string read(const std::vector<Token>& tokens) {
  std::string text;
  for (const Token token : tokens) text += token == 1 ? '^' : token == kEnd ? '$' : static_cast<char>(token);
  return text;
}

Conversation conversation(const std::optional<std::string>& system = {}) {
  return Conversation({render, tokenize, [](Token token) { return token == kEnd; }}, system);
}

Generation answer(const std::string& text, Token last) {
  Generation generation;
  generation.text = text;
  for (const char c : text) generation.tokens.push_back(c);
  if (last == kEnd) generation.tokens.push_back(kEnd);
  return generation;
}

TEST(Conversation, FirstMessageIsRenderedWholeWithItsStartToken) {
  EXPECT_EQ(read(*conversation("be brief").tokens_for("hi")), "^<s>be brief$<u>hi$<a>");
}

TEST(Conversation, LaterMessagesFeedOnlyWhatFollowsTheAnswer) {
  Conversation talk = conversation();
  talk.answered("hi", answer("hello", kEnd));
  EXPECT_EQ(read(*talk.tokens_for("bye")), "$<u>bye$<a>");
}

TEST(Conversation, AnAnswerCutShortIsEndedByTheTemplate) {
  Conversation talk = conversation();
  talk.answered("hi", answer("hello", 'o'));  // "o" was sampled but not fed
  EXPECT_EQ(read(*talk.tokens_for("bye")), "o$<u>bye$<a>");
}

TEST(Conversation, TheTemplatesOwnTrimmingDoesNotMatter) {
  Conversation talk = conversation();
  talk.answered("hi", answer("hello  ", kEnd));
  EXPECT_EQ(read(*talk.tokens_for("bye")), "$<u>bye$<a>");
}

TEST(Conversation, TheStandInMayOccurInAMessage) {
  Conversation talk = conversation();
  talk.answered("qevict-answer", answer("yes", kEnd));
  EXPECT_EQ(read(*talk.tokens_for("qevict-answer-x")), "$<u>qevict-answer-x$<a>");
}

TEST(Conversation, ClearKeepsTheSystemMessageOnly) {
  Conversation talk = conversation("be brief");
  talk.answered("hi", answer("hello", kEnd));
  talk.clear();
  EXPECT_EQ(read(*talk.tokens_for("bye")), "^<s>be brief$<u>bye$<a>");
}

TEST(Conversation, ALostCacheIsFedAgainWhole) {
  Conversation talk = conversation();
  talk.answered("hi", answer("hello", kEnd));
  talk.cache_lost();
  EXPECT_EQ(read(*talk.tokens_for("bye")), "^<u>hi$<a>hello$<u>bye$<a>");
}

TEST(Conversation, ATemplateThatForgetsAnswersIsRefused) {
  const auto forgetful = [](std::span<const ChatMessage> messages, bool) -> Result<std::string> {
    return messages.back().content;
  };
  Conversation talk({forgetful, tokenize, [](Token) { return false; }}, {});
  talk.answered("hi", answer("hello", 'o'));
  const Result<std::vector<Token>> tokens = talk.tokens_for("bye");
  ASSERT_FALSE(tokens.ok());
  EXPECT_EQ(tokens.error().kind, Error::Kind::unsupported);
}

}  // namespace
}  // namespace qevict::app
