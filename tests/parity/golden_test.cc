// Greedy text of the default model in f32 as it was when it was stored (tests/data/golden.txt). Rounding differs
// between processors, so a text may part from the stored one where the best logit led by less than rounding can move.
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <sstream>

#include "parity/references.h"

namespace qevict {
namespace {

constexpr std::size_t kPrompt = 400;

struct Golden {
  std::string method;
  std::vector<Token> tokens;
  std::vector<float> leads;  // of the best logit over the second best
};

// Lines of "method token:lead token:lead ...".
std::vector<Golden> stored() {
  std::ifstream file(QEVICT_TEST_DATA "/golden.txt");
  std::vector<Golden> result;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Golden golden;
    words >> golden.method;
    Token token = 0;
    char colon = 0;
    float lead = 0;
    while (words >> token >> colon >> lead) {
      golden.tokens.push_back(token);
      golden.leads.push_back(lead);
    }
    result.push_back(golden);
  }
  return result;
}

// Every SIMD target here is within 0.01 of the others in f16 tiers and 0.15 where codes may flip.
float near_tie(const std::string& method) { return find_method(method)->codec.empty() ? 0.03f : 0.3f; }

TEST(Golden, GreedyTextIsAsStored) {
  const std::vector<Golden> texts = stored();
  ASSERT_GE(texts.size(), 4u);
  for (const Golden& golden : texts) {
    ASSERT_NE(find_method(golden.method), nullptr) << golden.method;
    SessionOptions options{.cache = {.method = golden.method, .budget = {}}, .n_threads = 1};
    if (find_method(golden.method)->takes_budget()) options.cache.budget.ratio = 0.2;
    Session session = open_session(f32_model(), options);
    ASSERT_TRUE(session.prefill(prose().first(kPrompt), static_cast<int>(golden.tokens.size())));
    std::ostringstream now;
    now << golden.method;
    std::size_t same = 0;
    for (; same < golden.tokens.size(); ++same) {
      const auto token = static_cast<Token>(best_of(session.logits()));
      now << ' ' << token << ':' << lead_of(session.logits());
      if (token != golden.tokens[same]) {
        EXPECT_LT(golden.leads[same], near_tie(golden.method)) << "token " << same << " of\n" << now.str();
        break;
      }
      if (same + 1 == golden.tokens.size()) continue;
      ASSERT_TRUE(session.decode(token));
    }
    std::cout << "  " << golden.method << ": " << same << " of " << golden.tokens.size() << " tokens\n";
  }
}

}  // namespace
}  // namespace qevict
