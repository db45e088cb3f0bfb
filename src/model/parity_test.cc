// Our graphs against libllama's own context, on tiny random models of every shape we support and on the default model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "llama-cpp.h"
#include "model/f32_copy.h"
#include "model/text.h"
#include "model/transformer.h"
#include "support/naive_attention.h"
#include "support/scratch.h"
#include "support/tiny_model.h"

namespace qevict {
namespace {

using testing::NaiveAttention;
using testing::RopeScaling;
using testing::TinyModel;

constexpr int kPromptTokens = 100;
constexpr int kChunk = 64;
constexpr int kDecodeTokens = 32;

std::vector<std::int32_t> some_tokens(int n_vocab) {
  std::vector<std::int32_t> tokens(kPromptTokens + kDecodeTokens);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>((i * 7919 + 13 * i * i + 5) % static_cast<std::size_t>(n_vocab));
  return tokens;
}

std::size_t argmax(const std::vector<float>& logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

float max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0.0f;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

// Logits after the prompt and after each decoded token but the last.
using Logits = std::vector<std::vector<float>>;

Logits libllama_logits(const std::string& path, std::vector<std::int32_t> tokens, ggml_type kv_type) {
  route_llama_log();
  llama_model_params model_params = llama_model_default_params();
  const llama_model_ptr model(llama_model_load_from_file(path.c_str(), model_params));
  if (!model) return {};
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 256;
  params.n_batch = params.n_ubatch = kChunk;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = kv_type;
  const llama_context_ptr context(llama_init_from_model(model.get(), params));
  if (!context) return {};
  const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model.get())));
  Logits logits;
  for (int first = 0; first < static_cast<int>(tokens.size());) {
    const int count = first < kPromptTokens ? std::min(kChunk, kPromptTokens - first) : 1;
    if (llama_decode(context.get(), llama_batch_get_one(tokens.data() + first, count)) != 0) return {};
    first += count;
    if (first < kPromptTokens) continue;
    const float* last = llama_get_logits_ith(context.get(), -1);
    logits.emplace_back(last, last + n_vocab);
  }
  return logits;
}

class OurModel {
 public:
  explicit OurModel(const std::string& path, int n_threads = 1) {
    auto model = Transformer::load(path);
    if (!model) throw std::runtime_error(model.error().message);
    model_ = std::move(*model);
    auto runner = Runner::create(*model_, n_threads, kChunk);
    if (!runner) throw std::runtime_error(runner.error().message);
    runner_ = std::move(*runner);
  }

  const ModelShape& shape() const { return model_->shape(); }

  // Prefill of the first n_prompt tokens layer by layer, then decode of the rest.
  Logits logits(std::span<const std::int32_t> tokens, std::size_t n_prompt, bool half_precision_kv) {
    NaiveAttention attention(shape(), tokens.size(), half_precision_kv);
    const auto n_embd = static_cast<std::size_t>(shape().n_embd);
    std::vector<float> hidden(n_prompt * n_embd);
    require(runner_->embed(tokens.first(n_prompt), hidden));
    for (int layer = 0; layer < shape().n_layers; ++layer)
      for (std::size_t first = 0; first < n_prompt; first += kChunk) {
        const std::size_t count = std::min<std::size_t>(kChunk, n_prompt - first);
        const bool last_row_only = layer == shape().n_layers - 1 && first + count == n_prompt;
        attention.set_position(static_cast<int>(first));
        require(runner_->layer(layer, std::span(hidden).subspan(first * n_embd, count * n_embd),
                               static_cast<std::int32_t>(first), last_row_only, attention));
      }
    Logits logits;
    const auto next = [&]() -> std::vector<float>& {
      return logits.emplace_back(static_cast<std::size_t>(shape().n_vocab));
    };
    require(runner_->head(std::span(hidden).last(n_embd), next()));
    for (std::size_t i = n_prompt; i < tokens.size(); ++i) {
      attention.set_position(static_cast<int>(i));
      require(runner_->decode(tokens[i], static_cast<std::int32_t>(i), attention, next()));
    }
    return logits;
  }

 private:
  static void require(const Result<void>& result) {
    if (!result) throw std::runtime_error(result.error().message);
  }

  std::unique_ptr<Transformer> model_;
  std::unique_ptr<Runner> runner_;
};

struct Case {
  const char* name;
  TinyModel model;
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
};

class TinyParity : public ::testing::TestWithParam<Case> {
 protected:
  std::string write() const {
    const std::string path = testing::scratch_path(std::string("parity-") + GetParam().name + ".gguf");
    GetParam().model.write(path);
    return path;
  }
  void expect_close(const Logits& ours, const Logits& theirs, float bound) const {
    ASSERT_EQ(theirs.size(), static_cast<std::size_t>(kDecodeTokens + 1)) << "libllama refused the model";
    ASSERT_EQ(ours.size(), theirs.size());
    float most = 0.0f;
    for (std::size_t step = 0; step < ours.size(); ++step) {
      most = std::max(most, max_difference(ours[step], theirs[step]));
      EXPECT_EQ(argmax(ours[step]), argmax(theirs[step])) << "step " << step;
    }
    EXPECT_LE(most, bound);
    RecordProperty("max_difference", std::to_string(most));
  }
};

TEST_P(TinyParity, LogitsEqualLibllamasWithAnF32Cache) {
  const std::string path = write();
  OurModel ours(path);
  const std::vector<std::int32_t> tokens = some_tokens(ours.shape().n_vocab);
  const float bound = GetParam().model.matrices != "f32" ? 0.05f : 2e-4f;
  expect_close(ours.logits(tokens, kPromptTokens, false), libllama_logits(path, tokens, GGML_TYPE_F32), bound);
}

// libllama also rounds queries and probabilities to f16, so this is looser. Large key biases and quantized activations
// amplify that rounding: such models are left out.
class TinyParityHalf : public TinyParity {};

TEST_P(TinyParityHalf, LogitsEqualLibllamasWithAnF16Cache) {
  const std::string path = write();
  OurModel ours(path);
  const std::vector<std::int32_t> tokens = some_tokens(ours.shape().n_vocab);
  expect_close(ours.logits(tokens, kPromptTokens, true), libllama_logits(path, tokens, GGML_TYPE_F16), 0.02f);
}

// Where ours is another matmul than libllama's (matrix.h), the two differ by how they round activations: neither may be
// further than the other from the same weights in f32.
class TinyParityConverted : public TinyParity {};

TEST_P(TinyParityConverted, NoFurtherFromTheWeightsInF32ThanLibllama) {
  const std::string path = write(), copy = path + ".f32";
  ASSERT_TRUE(write_f32_copy(path, copy));
  OurModel ours(path);
  const std::vector<std::int32_t> tokens = some_tokens(ours.shape().n_vocab);
  const auto want = libllama_logits(copy, tokens, GGML_TYPE_F32);
  const auto theirs = libllama_logits(path, tokens, GGML_TYPE_F32);
  const auto got = ours.logits(tokens, kPromptTokens, false);
  double our_error = 0.0, their_error = 0.0;
  for (std::size_t step = 0; step < want.size(); ++step) {
    for (std::size_t i = 0; i < want[step].size(); ++i) {
      our_error += std::pow(got[step][i] - want[step][i], 2);
      their_error += std::pow(theirs[step][i] - want[step][i], 2);
    }
  }
  EXPECT_LE(std::sqrt(our_error), 1.2 * std::sqrt(their_error));
}

TEST_P(TinyParity, PrefillAndDecodeAgree) {
  OurModel ours(write());
  const std::vector<std::int32_t> tokens = some_tokens(ours.shape().n_vocab);
  const std::vector<float> decoded = ours.logits(tokens, kPromptTokens, false).back();
  const std::vector<float> prefilled = ours.logits(tokens, tokens.size(), false).back();
  EXPECT_LE(max_difference(decoded, prefilled), GetParam().model.matrices != "f32" ? 0.05f : 2e-4f);
  EXPECT_EQ(argmax(decoded), argmax(prefilled));
}

// Shapes: groups 1:1, 3:1, 7:1; head sizes 64, 80, 96, 128, 256; every RoPE scaling; every optional tensor.
const Case kCases[] = {
    {"llama64", {.n_heads = 2, .n_kv_heads = 2, .tied_head = true}},
    {"llama80linear", {.n_heads = 3, .head_dim = 80, .scaling = RopeScaling::linear}},
    {"llama96yarn", {.n_heads = 7, .head_dim = 96, .scaling = RopeScaling::yarn}},
    {"llama128factors",
     {.n_layers = 3,
      .n_heads = 6,
      .n_kv_heads = 2,
      .head_dim = 128,
      .n_ff = 384,
      .scaling = RopeScaling::frequency_factors}},
    {"llama256", {.n_heads = 2, .n_kv_heads = 1, .head_dim = 256}},
    {"llamabias", {.qkv_bias = true, .llama_bias = true}},
    {"llamafused", {.n_heads = 6, .n_kv_heads = 2, .qkv_bias = true, .fused_qkv = true}},
    {"llamaq8", {.n_heads = 4, .n_kv_heads = 2, .tied_head = true, .matrices = "q8_0"}},
    {"qwen2a", {.architecture = "qwen2", .n_heads = 7, .qkv_bias = true, .tied_head = true}},
    {"qwen2yarn",
     {.architecture = "qwen2", .n_heads = 3, .head_dim = 128, .scaling = RopeScaling::yarn, .qkv_bias = true}},
    {"qwen2x80", {.architecture = "qwen2", .n_heads = 2, .n_kv_heads = 2, .head_dim = 80, .qkv_bias = true}},
    {"qwen3a", {.architecture = "qwen3", .n_layers = 3, .n_heads = 3, .head_dim = 128}},
    {"qwen3linear",
     {.architecture = "qwen3", .n_heads = 7, .head_dim = 64, .scaling = RopeScaling::linear, .tied_head = true}},
    {"qwen3x256",
     {.architecture = "qwen3", .n_heads = 2, .n_kv_heads = 2, .head_dim = 256, .scaling = RopeScaling::yarn}},
};

const Case kConverted[] = {
    {"llamaq41", {.n_heads = 4, .n_kv_heads = 2, .tied_head = true, .matrices = "q4_1"}},
    {"qwen2q41", {.architecture = "qwen2", .n_heads = 4, .n_kv_heads = 2, .qkv_bias = true, .matrices = "q4_1"}}};

std::vector<Case> smooth_cases() {
  std::vector<Case> cases;
  for (const Case& one : kCases)
    if (!one.model.qkv_bias && one.model.matrices == "f32") cases.push_back(one);
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& one) { return one.param.name; }

INSTANTIATE_TEST_SUITE_P(Shapes, TinyParity, ::testing::ValuesIn(kCases), case_name);
INSTANTIATE_TEST_SUITE_P(Shapes, TinyParityConverted, ::testing::ValuesIn(kConverted), case_name);
INSTANTIATE_TEST_SUITE_P(Shapes, TinyParityHalf, ::testing::ValuesIn(smooth_cases()), case_name);

// With 4-bit weights activations are rounded to 8 bits, so only the choice of a clear-cut token is compared.
TEST(DefaultModel, ContinuesAsExpected) {
  const std::string path = testing::test_model();
  ASSERT_FALSE(path.empty());
  OurModel ours(path);
  EXPECT_EQ(ours.shape().architecture, "llama");
  EXPECT_EQ(ours.shape().weights, "Q4_1");
  auto vocabulary = Vocabulary::load(path, "");
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;
  auto tokens = (*vocabulary)->tokenize("The capital of France is", true, false);
  ASSERT_TRUE(tokens) << tokens.error().message;
  const Logits prefilled = ours.logits(*tokens, tokens->size(), true);
  const Logits decoded = ours.logits(*tokens, 1, true);
  EXPECT_EQ((*vocabulary)->piece(static_cast<std::int32_t>(argmax(prefilled.back())), false), " Paris");
  EXPECT_EQ((*vocabulary)->piece(static_cast<std::int32_t>(argmax(decoded.back())), false), " Paris");
}

// The quantized kernels too split their work so that sums do not depend on the threads.
TEST(DefaultModel, LogitsDoNotDependOnThreads) {
  const std::string path = testing::test_model();
  ASSERT_FALSE(path.empty());
  const std::vector<std::int32_t> tokens = {504, 3575, 282, 4649, 314, 7042, 30, 216};
  EXPECT_EQ(OurModel(path, 1).logits(tokens, 6, true), OurModel(path, 2).logits(tokens, 6, true));
}

}  // namespace
}  // namespace qevict
