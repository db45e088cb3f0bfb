#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/text.h"
#include "support/scratch.h"
#include "support/tiny_model.h"

namespace qevict {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::scratch_path;
using testing::TinyModel;

std::unique_ptr<Vocabulary> load(const std::string& path, const std::string& chat_template = "") {
  auto vocabulary = Vocabulary::load(path, chat_template);
  if (!vocabulary) throw std::runtime_error(vocabulary.error().message);
  return std::move(*vocabulary);
}

std::unique_ptr<Vocabulary> load_tiny(const TinyModel& model, const std::string& chat_template = "") {
  const std::string path = scratch_path("vocabulary.gguf");
  model.write(path);
  return load(path, chat_template);
}

std::vector<std::int32_t> tokens(const Vocabulary& v, std::string_view text, bool add_special, bool parse_special) {
  auto result = v.tokenize(text, add_special, parse_special);
  if (!result) throw std::runtime_error(result.error().message);
  return *result;
}

const std::vector<ChatMessage> kChat = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello"}, {"user", "Why?"}};

TEST(DefaultVocabulary, TokensGoThereAndBack) {
  const auto v = load(testing::test_model());
  EXPECT_EQ(v->size(), 49152);
  const std::string text = "Caf\xC3\xA9 \xF0\x9F\x98\x80, 42 things;\n\tdone.";
  std::string back;
  for (const std::int32_t token : tokens(*v, text, false, false)) back += v->piece(token, false);
  EXPECT_EQ(back, text);
  EXPECT_TRUE(tokens(*v, "", false, false).empty());
  EXPECT_EQ(v->piece(-1, true), "");
  EXPECT_EQ(v->piece(1 << 20, true), "");
  EXPECT_FALSE(v->ends_generation(-1));
}

TEST(DefaultVocabulary, SpecialTokensAreReadOnlyWhenAskedFor) {
  const auto v = load(testing::test_model());
  const auto special = tokens(*v, "<|im_end|>", false, true);
  ASSERT_EQ(special.size(), 1u);
  EXPECT_TRUE(v->ends_generation(special[0]));
  EXPECT_EQ(v->piece(special[0], true), "<|im_end|>");
  EXPECT_EQ(v->piece(special[0], false), "");
  EXPECT_GT(tokens(*v, "<|im_end|>", false, false).size(), 1u);
}

TEST(DefaultVocabulary, InvalidUtf8NamesTheByte) {
  const auto v = load(testing::test_model());
  auto result = v->tokenize("abc\xFFz", true, true);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, Error::Kind::invalid);
  EXPECT_THAT(result.error().message, AllOf(HasSubstr("byte 3"), HasSubstr("0xff")));
}

TEST(DefaultVocabulary, WritesItsOwnChatMl) {
  const auto v = load(testing::test_model());
  auto text = v->apply_template(kChat, true);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n");
  auto open = v->apply_template(kChat, false);
  ASSERT_TRUE(open);
  EXPECT_TRUE(open->ends_with("<|im_start|>user\nWhy?<|im_end|>\n"));
  // SmolLM2 puts its own system turn before a conversation without one.
  auto bare = v->apply_template(std::vector<ChatMessage>{{"user", "Hi"}}, true);
  ASSERT_TRUE(bare);
  EXPECT_THAT(*bare, HasSubstr("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"));
}

TEST(DefaultVocabulary, TurnsBecomeSingleTokensAndNoStartTokenIsDoubled) {
  const auto v = load(testing::test_model());
  auto text = v->apply_template(std::vector<ChatMessage>{{"system", "s"}, {"user", "u"}}, true);
  ASSERT_TRUE(text);
  const auto ids = tokens(*v, *text, true, true);
  const std::int32_t start = tokens(*v, "<|im_start|>", false, true).front();
  EXPECT_EQ(ids[0], start);
  EXPECT_NE(ids[1], start);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), start), 3);
}

TEST(TinyVocabulary, StartTokenAppearsOnce) {
  const auto v = load_tiny({});
  EXPECT_EQ(tokens(*v, "ab", true, true).front(), 1);
  EXPECT_NE(tokens(*v, "ab", true, true)[1], 1);
  const auto written = tokens(*v, "<s>ab", true, true);
  EXPECT_EQ(std::count(written.begin(), written.end(), 1), 1);
  EXPECT_NE(tokens(*v, "ab", false, true).front(), 1);
  EXPECT_EQ(tokens(*v, "<s>ab", false, true).front(), 1);
  EXPECT_TRUE(v->ends_generation(2));
  EXPECT_FALSE(v->ends_generation(1));
}

TEST(TinyVocabulary, ATemplateThatWritesTheStartTokenDoesNotDoubleIt) {
  const auto v =
      load_tiny({.chat_template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"});
  auto text = v->apply_template(std::vector<ChatMessage>{{"user", "ab"}}, true);
  ASSERT_TRUE(text) << text.error().message;
  const auto ids = tokens(*v, *text, true, true);
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 1);
}

TEST(ChatTemplate, CanBeNamedOrGivenAndAnUnknownOneIsAnError) {
  const std::vector<ChatMessage> chat = {{"user", "ab"}};
  EXPECT_EQ(*load_tiny({}, "chatml")->apply_template(chat, true),
            "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THAT(*load_tiny({}, "llama3")->apply_template(chat, true),
              HasSubstr("<|start_header_id|>user<|end_header_id|>"));
  EXPECT_EQ(*load_tiny({}, "{% for m in messages %}<{{ m.content }}>{% endfor %}")->apply_template(chat, true), "<ab>");
  const std::string path = scratch_path("vocabulary.gguf");
  auto unknown = Vocabulary::load(path, "no-such-template");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, AllOf(HasSubstr("'no-such-template'"), HasSubstr("chatml")));
  EXPECT_FALSE(Vocabulary::load(path, "{% for broken"));
}

TEST(ChatTemplate, AMissingOneOrOneThatRaisesIsAnErrorOfTheChat) {
  const std::vector<ChatMessage> chat = {{"user", "ab"}};
  EXPECT_THAT(load_tiny({})->apply_template(chat, true).error().message, HasSubstr("no chat template"));
  const auto raising = load_tiny({}, "{{ raise_exception('roles must alternate') }}");
  EXPECT_THAT(raising->apply_template(chat, true).error().message, HasSubstr("roles must alternate"));
  const auto broken = load_tiny({.chat_template = "{% for broken"});
  EXPECT_FALSE(broken->apply_template(chat, true));
}

TEST(ChatTemplate, LongConversationsAreWrittenWhole) {
  const std::string long_text(20000, 'x');
  auto text = load_tiny({}, "chatml")->apply_template(std::vector<ChatMessage>{{"user", long_text}}, true);
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, HasSubstr(long_text));
}

}  // namespace
}  // namespace qevict
