#include "eval/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace qevict {
namespace {

using ::testing::HasSubstr;

// One token a byte.
FactsVocabulary bytes() {
  return {.tokenize = [](std::string_view text) -> Result<std::vector<Token>> {
            return std::vector<Token>(text.begin(), text.end());
          },
          .piece = [](Token token) { return std::string(1, static_cast<char>(token)); }};
}

std::vector<Token> tokens_of(std::string_view text) { return {text.begin(), text.end()}; }

std::string text_of(std::span<const Token> tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), std::string(),
                         [](std::string text, Token token) { return text += static_cast<char>(token); });
}

std::string sentences(std::size_t most) {
  std::string text;
  for (int i = 0; text.size() < most; ++i) text += "Sentence " + std::to_string(i) + " ends here. ";
  return text.substr(0, most);
}

TEST(Facts, AreTheSameForASeedOnEveryMachine) {
  const std::vector<Fact> facts = make_facts(3, 7);
  ASSERT_EQ(facts.size(), 3u);
  EXPECT_EQ(facts[0].statement(), "The library card of Balkan Mimbis has the number 3419988.");
  EXPECT_EQ(facts[1].statement(), "The lottery ticket of Vesketh Tado had the number 4990494.");
  EXPECT_EQ(facts[2].statement(), "The parcel for Cevek Orra was sent under the number 9169300.");
  EXPECT_NE(make_facts(1, 8)[0].statement(), facts[0].statement());
  EXPECT_EQ(make_facts(2, 7)[1].statement(), facts[1].statement()) << "more facts only add some";
}

TEST(Facts, HaveDifferentNamesAndNumbersOfSevenOrEightDigits) {
  std::set<std::string> words, numbers;
  std::set<std::size_t> lengths;
  for (const Fact& fact : make_facts(200, 1)) {
    EXPECT_TRUE(words.insert(fact.words).second) << fact.words;
    EXPECT_TRUE(numbers.insert(fact.number).second) << fact.number;
    EXPECT_EQ(fact.number.find_first_not_of("0123456789"), std::string::npos);
    EXPECT_NE(fact.number.front(), '0');
    EXPECT_EQ(fact.words.find_first_of("{}0123456789"), std::string::npos) << fact.words;
    lengths.insert(fact.number.size());
  }
  EXPECT_EQ(lengths, (std::set<std::size_t>{7, 8}));
}

TEST(FactsDocument, HasExactlyTheTokensAndAllFactsAfterSentences) {
  const std::vector<Fact> facts = make_facts(4, 3);
  const std::string filler = sentences(1200);
  const Result<FactsDocument> document = make_facts_document(tokens_of("^"), tokens_of(filler), 1200, facts, bytes());
  ASSERT_TRUE(document) << document.error().message;
  EXPECT_EQ(document->prompt.size(), 1200u);
  std::string text = text_of(document->prompt);
  EXPECT_EQ(text.front(), '^');
  std::size_t before = 0;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const std::size_t at = text.find(". " + facts[i].statement() + " Sentence");
    ASSERT_NE(at, std::string::npos) << facts[i].statement();
    EXPECT_GT(at, before);
    EXPECT_NEAR(static_cast<double>(at) / 1200.0, (static_cast<double>(i) + 0.5) / 4, 0.06);
    before = at;
  }
  for (const Fact& fact : facts) text.erase(text.find(" " + fact.statement()), fact.statement().size() + 1);
  EXPECT_EQ(text.substr(1), filler.substr(0, text.size() - 1)) << "the rest is the text, nothing lost or twice";
}

TEST(FactsDocument, AsksWithTheFactsOwnWords) {
  const std::vector<Fact> facts = make_facts(1, 3);
  const Result<FactsDocument> document = make_facts_document({}, tokens_of(sentences(300)), 300, facts, bytes());
  ASSERT_TRUE(document);
  ASSERT_EQ(document->questions.size(), 1u);
  EXPECT_THAT(text_of(document->questions[0].cue), HasSubstr(facts[0].words + " "));
  EXPECT_EQ(text_of(document->questions[0].answer), facts[0].number);
}

TEST(FactsDocument, TakesTheTokensThatHoldDigits) {
  // Tokens of up to three digits, a space before them in the first one.
  std::vector<std::string> pieces;
  const FactsVocabulary vocabulary{
      .tokenize = [&](std::string_view text) -> Result<std::vector<Token>> {
        std::vector<Token> tokens;
        for (std::size_t at = 0; at < text.size();) {
          std::size_t end = at + 1;
          while (end < text.size() && end < at + 4 && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
          tokens.push_back(static_cast<Token>(pieces.size()));
          pieces.emplace_back(text.substr(at, end - at));
          at = end;
        }
        return tokens;
      },
      .piece = [&](Token token) { return pieces[static_cast<std::size_t>(token)]; }};
  const Result<std::vector<Token>> filler = vocabulary.tokenize(sentences(400));
  const std::vector<Fact> facts = {{.words = "The code is", .number = "12345678"}};
  const Result<FactsDocument> document = make_facts_document({}, *filler, 300, facts, vocabulary);
  ASSERT_TRUE(document);
  std::vector<std::string> answer;
  for (const Token token : document->questions[0].answer) answer.push_back(pieces[static_cast<std::size_t>(token)]);
  EXPECT_EQ(answer, (std::vector<std::string>{" 123", "4567", "8"}));
}

TEST(FactsDocument, RefusesFactsThatLeaveNoRoomForTheText) {
  const Result<FactsDocument> document =
      make_facts_document({}, tokens_of(sentences(300)), 300, make_facts(16, 1), bytes());
  ASSERT_FALSE(document);
  EXPECT_THAT(document.error().message, HasSubstr("16 facts take"));
}

TEST(FactScore, CountsDigitsInPlaceAndBeforeTheFirstMistake) {
  const std::vector<Token> answer = {4, 8, 2, 1};
  const FactScore all = score_answer(answer, answer);
  EXPECT_EQ(all.digits, 1);
  EXPECT_EQ(all.leading, 1);
  EXPECT_TRUE(all.whole);
  const FactScore third_wrong = score_answer(answer, std::vector<Token>{4, 8, 9, 1});
  EXPECT_EQ(third_wrong.digits, 0.75);
  EXPECT_EQ(third_wrong.leading, 0.5);
  EXPECT_FALSE(third_wrong.whole);
  const FactScore first_wrong = score_answer(answer, std::vector<Token>{8, 8, 2, 1});
  EXPECT_EQ(first_wrong.digits, 0.75);
  EXPECT_EQ(first_wrong.leading, 0);
}

}  // namespace
}  // namespace qevict
