// Method `full` against libllama, token for token: nothing is compressed, so nothing may differ but rounding.
#include <gtest/gtest.h>

#include <iostream>

#include "base/rng.h"
#include "parity/libllama.h"
#include "parity/references.h"
#include "support/scratch.h"
#include "support/tiny_model.h"

namespace qevict {
namespace {

constexpr std::size_t kPrompt = 600;
constexpr std::size_t kNew = 128;

// libllama's logits after the prompt and along its own greedy text.
struct Rival {
  std::vector<Token> tokens;  // [kNew]
  Logits logits;              // [kNew]
};
Rival greedy_rival(const std::string& path, std::span<const Token> prompt, const LlamaOptions& options) {
  LlamaSequence sequence(path, options);
  Rival result;
  result.logits.push_back(sequence.feed(prompt));
  for (std::size_t i = 0; i < kNew; ++i) {
    result.tokens.push_back(static_cast<Token>(best_of(result.logits.back())));
    if (i + 1 < kNew) result.logits.push_back(sequence.feed({&result.tokens.back(), 1}));
  }
  return result;
}
Logits forced_rival(const std::string& path, std::span<const Token> prompt, std::span<const Token> tokens,
                    const LlamaOptions& options) {
  LlamaSequence sequence(path, options);
  Logits logits = {sequence.feed(prompt)};
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) logits.push_back(sequence.feed(tokens.subspan(i, 1)));
  return logits;
}

void print(const std::string& name, const Difference& found) {
  std::cout << "  " << name << ": max |logit difference| " << found.max_logit << ", mean KL " << found.mean_kl
            << ", same greedy token for " << found.same_top << " of " << kNew << "\n";
}
void expect_parity(const Difference& found) {
  EXPECT_LE(found.max_logit, 0.15f);
  EXPECT_LE(found.mean_kl, 1e-5);
  EXPECT_TRUE(found.same_top == kNew || found.lead <= 0.02f)
      << "the greedy text differs after " << found.same_top << " tokens, where the best logit leads by " << found.lead;
}

struct Shape {
  const char* name;
  testing::TinyModel model;
  friend void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }
};
class TinyParity : public ::testing::TestWithParam<Shape> {};

using testing::RopeScaling;
INSTANTIATE_TEST_SUITE_P(
    Shapes, TinyParity,
    ::testing::Values(
        Shape{"llama64", {.n_heads = 3, .n_ctx_train = 1024}},
        Shape{"llama96linear",
              {.n_heads = 2, .n_kv_heads = 2, .head_dim = 96, .n_ctx_train = 1024, .scaling = RopeScaling::linear}},
        Shape{"llama128factors",
              {.n_heads = 6,
               .n_kv_heads = 2,
               .head_dim = 128,
               .n_ctx_train = 1024,
               .scaling = RopeScaling::frequency_factors}},
        Shape{"llama80yarn", {.n_heads = 7, .head_dim = 80, .n_ctx_train = 1024, .scaling = RopeScaling::yarn}},
        Shape{"qwen2", {.architecture = "qwen2", .n_heads = 7, .n_ctx_train = 1024, .qkv_bias = true}},
        Shape{"qwen2linear",
              {.architecture = "qwen2",
               .n_heads = 4,
               .n_kv_heads = 2,
               .n_ctx_train = 1024,
               .scaling = RopeScaling::linear,
               .qkv_bias = true}},
        Shape{"qwen3", {.architecture = "qwen3", .n_layers = 3, .n_heads = 3, .head_dim = 128, .n_ctx_train = 1024}},
        Shape{"qwen3linear",
              {.architecture = "qwen3",
               .n_heads = 2,
               .n_kv_heads = 2,
               .head_dim = 256,
               .n_ctx_train = 1024,
               .scaling = RopeScaling::linear}}),
    [](const auto& one) { return std::string(one.param.name); });

TEST_P(TinyParity, FullIsLibllama) {
  const std::string path = testing::scratch_path(std::string("full-") + GetParam().name + ".gguf");
  GetParam().model.write(path);
  Rng rng(1);
  std::vector<Token> prompt;
  for (std::size_t i = 0; i < kPrompt; ++i) prompt.push_back(rng.between(3, GetParam().model.n_vocab - 1));
  const Rival rival = greedy_rival(path, prompt, {});
  const Result<Model> model = Model::load(path);
  ASSERT_TRUE(model) << model.error().message;
  Session session = open_session(*model, {.cache = {.method = "full"}, .n_threads = 1});
  const Difference found = difference(rival.logits, teacher_forced(session, prompt, rival.tokens));
  print(GetParam().name, found);
  expect_parity(found);
}

TEST(DefaultModelInF32, FullIsLibllama) {
  const std::span<const Token> prompt = prose().first(kPrompt);
  const Rival rival = greedy_rival(f32_copy(), prompt, {});
  Session session = open_session(f32_model(), {.cache = {.method = "full"}, .n_threads = 1});
  const Difference found = difference(rival.logits, teacher_forced(session, prompt, rival.tokens));
  print("default model, f32", found);
  expect_parity(found);
}

// With 4-bit weights activations are rounded to 8 bits, which amplifies every rounding: the floor is what libllama
// differs from itself by, with its flash attention on.
TEST(DefaultModelAsShipped, FullIsAsNearToLibllamaAsLibllamaIsToItself) {
  const std::string path = testing::test_model();
  const std::span<const Token> prompt = prose().first(kPrompt);
  const Rival rival = greedy_rival(path, prompt, {});
  const Difference floor =
      difference(rival.logits, forced_rival(path, prompt, rival.tokens, {.flash_attention = true}));
  print("libllama, flash attention on against off", floor);
  const Result<Model> model = Model::load(path);
  ASSERT_TRUE(model) << model.error().message;
  Session session = open_session(*model, {.cache = {.method = "full"}, .n_threads = 1});
  const Difference found = difference(rival.logits, teacher_forced(session, prompt, rival.tokens));
  print("default model, Q4_1", found);
  EXPECT_LE(found.mean_kl, 1.5 * floor.mean_kl);
}

}  // namespace
}  // namespace qevict
