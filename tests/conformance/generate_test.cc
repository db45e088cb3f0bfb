// generate(): what it feeds, where it stops, and what it tells its callbacks.
#include "qevict/generate.h"

#include "conformance/sessions.h"

namespace qevict {
namespace {

GenerateOptions greedy_options(int max_new) {
  return {.max_new = max_new, .sampling = {.temperature = 0}, .ignore_eos = true};
}
GenerateOptions hot_options(std::uint32_t seed) {
  return {.max_new = 40,
          .sampling = {.temperature = 3, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed},
          .ignore_eos = true};
}

class Generates : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Rows, Generates, ::testing::ValuesIn(every_method()), method_test_name);

TEST_P(Generates, TheGreedyTextThatDecodeGives) {
  const SessionOptions options = options_of(GetParam(), share(0.3));
  Session by_hand = open_session(options);
  std::vector<Token> expected = greedy(by_hand, random_prompt(150), 30, 30).tokens;
  const auto end =
      std::find_if(expected.begin(), expected.end(), [](Token token) { return tiny_model().ends_generation(token); });
  const bool ends = end != expected.end();
  if (ends) expected.erase(end + 1, expected.end());
  GenerateOptions greedily = greedy_options(30);
  greedily.ignore_eos = false;
  Session session = open_session(options);
  const Result<Generation> made = generate(tiny_model(), session, random_prompt(150), greedily);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->tokens, expected);
  EXPECT_EQ(made->stop, ends ? StopReason::end_of_text : StopReason::max_new);
  EXPECT_EQ(made->prompt_tokens, 150);
  EXPECT_EQ(session.n_tokens(), 150 + static_cast<int>(expected.size()) - 1) << "the last token is not fed";
  EXPECT_GT(made->ttft_ms, 0);
  EXPECT_GE(made->ttft_ms, made->prefill_ms);
}

TEST_P(Generates, TheSameTextFromTheSameSeed) {
  const SessionOptions options = options_of(GetParam(), share(0.3));
  std::vector<Token> texts[3];
  for (int i = 0; i < 3; ++i) {
    Session session = open_session(options);
    std::string pieces;
    const GenerateCallbacks callbacks{.text = [&](std::string_view piece) {
      pieces += piece;
      return true;
    }};
    const Result<Generation> made =
        generate(tiny_model(), session, random_prompt(60), hot_options(i < 2 ? 5 : 6), callbacks);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(pieces, made->text) << "the pieces, joined, are the text";
    texts[i] = made->tokens;
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(texts[0], texts[2]);
}

TEST_P(Generates, UntilTheContextIsFull) {
  SessionOptions options = options_of(GetParam(), share(0.5), BudgetBase::context);
  options.n_ctx = 90;
  Session session = open_session(options);
  const Result<Generation> made = generate(tiny_model(), session, random_prompt(60), greedy_options(-1));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->stop, StopReason::context_full);
  EXPECT_EQ(session.n_tokens(), 90);
  EXPECT_EQ(made->tokens.size(), 31u) << "one for every place left, and one sampled from the last";
}

TEST(Generates, NothingIfNothingIsAskedFor) {
  Session session = open_session(options_of("qevict-paper", share(0.3)));
  const Result<Generation> made = generate(tiny_model(), session, random_prompt(20), greedy_options(0));
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->tokens.empty());
  EXPECT_EQ(made->stop, StopReason::max_new);
  EXPECT_EQ(generate(tiny_model(), session, random_prompt(20), greedy_options(-2)).error().kind, Error::Kind::invalid);
  EXPECT_EQ(generate(tiny_model(), session, {}, greedy_options(5)).error().kind, Error::Kind::invalid);
}

TEST(Generates, UntilACallbackSaysStop) {
  const SessionOptions options = options_of("qevict-paper", share(0.3));
  {
    Session session = open_session(options);
    int asked = 0;
    const Result<Generation> made =
        generate(tiny_model(), session, random_prompt(50), greedy_options(30), {.stop = [&] { return ++asked > 7; }});
    ASSERT_TRUE(made);
    EXPECT_EQ(made->stop, StopReason::interrupted);
    EXPECT_EQ(made->tokens.size(), 7u);
    ASSERT_TRUE(session.prefill(random_prompt(5), 5)) << "the session goes on";
  }
  {
    Session session = open_session(options);
    const Result<Generation> made = generate(tiny_model(), session, random_prompt(50), hot_options(1),
                                             {.text = [](std::string_view) { return false; }});
    ASSERT_TRUE(made);
    EXPECT_EQ(made->stop, StopReason::interrupted);
  }
  {
    Session session = open_session(options);
    const Result<Generation> made = generate(tiny_model(), session, random_prompt(50), greedy_options(30),
                                             {.progress = [](std::int64_t, std::int64_t) { return false; }});
    ASSERT_TRUE(made);
    EXPECT_EQ(made->stop, StopReason::interrupted);
    EXPECT_TRUE(made->tokens.empty());
  }
}

TEST(Generates, UntilTheEndOfText) {
  GenerateOptions options = hot_options(0);
  options.max_new = 900;
  options.ignore_eos = false;
  int ended = 0;
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    options.sampling.seed = seed;
    Session session = open_session(options_of("full"));
    const Result<Generation> made = generate(tiny_model(), session, random_prompt(20), options);
    ASSERT_TRUE(made);
    for (std::size_t i = 0; i + 1 < made->tokens.size(); ++i)
      EXPECT_FALSE(tiny_model().ends_generation(made->tokens[i]));
    if (made->stop == StopReason::end_of_text) {
      ++ended;
      EXPECT_TRUE(tiny_model().ends_generation(made->tokens.back()));
    }
  }
  EXPECT_GT(ended, 0);
}

}  // namespace
}  // namespace qevict
