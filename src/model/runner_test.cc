#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/gguf_file.h"
#include "model/transformer.h"
#include "support/naive_attention.h"
#include "support/scratch.h"
#include "support/tiny_model.h"

namespace qevict {
namespace {

using ::testing::HasSubstr;
using testing::NaiveAttention;
using testing::scratch_path;
using testing::TinyModel;

class RunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = scratch_path("runner.gguf");
    TinyModel().write(path);
    auto model = Transformer::load(path);
    ASSERT_TRUE(model) << model.error().message;
    model_ = std::move(*model);
  }
  std::unique_ptr<Runner> runner(int n_threads, int max_chunk = 16) const {
    auto made = Runner::create(*model_, n_threads, max_chunk);
    EXPECT_TRUE(made);
    return std::move(*made);
  }
  std::vector<float> logits() const { return std::vector<float>(static_cast<std::size_t>(model_->shape().n_vocab)); }

  std::unique_ptr<Transformer> model_;
};

TEST_F(RunnerTest, ResultsDoNotDependOnThreadsOrOnOtherRunners) {
  std::vector<std::vector<float>> results;
  std::vector<std::unique_ptr<Runner>> alive;
  for (const int n_threads : {1, 2, 3, 1}) {
    alive.push_back(runner(n_threads));
    NaiveAttention attention(model_->shape(), 8, false);
    std::vector<float> last = logits();
    for (int i = 0; i < 8; ++i) {
      attention.set_position(i);
      ASSERT_TRUE(alive.back()->decode(40 * i, i, attention, last));
    }
    results.push_back(last);
  }
  for (const std::vector<float>& result : results) EXPECT_EQ(result, results.front());
}

TEST_F(RunnerTest, ChunksOfAnySizeGiveTheSameRows) {
  const auto n_embd = static_cast<std::size_t>(model_->shape().n_embd);
  const std::vector<std::int32_t> tokens = {5, 300, 17, 17, 80, 199, 2, 9};
  std::vector<std::vector<float>> results;
  const std::unique_ptr<Runner> run = runner(1, 8);
  for (const std::size_t chunk : {8u, 3u, 1u, 8u}) {
    NaiveAttention attention(model_->shape(), tokens.size(), false);
    std::vector<float>& hidden = results.emplace_back(tokens.size() * n_embd);
    ASSERT_TRUE(run->embed(tokens, hidden));
    for (std::size_t first = 0; first < tokens.size(); first += chunk) {
      const std::size_t count = std::min(chunk, tokens.size() - first);
      attention.set_position(static_cast<int>(first));
      ASSERT_TRUE(run->layer(0, std::span(hidden).subspan(first * n_embd, count * n_embd),
                             static_cast<std::int32_t>(first), false, attention));
    }
  }
  EXPECT_EQ(results[0], results[3]);
  for (const std::vector<float>& result : results)
    for (std::size_t i = 0; i < result.size(); ++i) ASSERT_NEAR(result[i], results[0][i], 1e-4f);
}

// Against the file's own rows of the projection, one product after the other (baselines.md T-NORM is its definition).
TEST_F(RunnerTest, ProjectedNormsAreTheMeanOverTheGroup) {
  const ModelShape& shape = model_->shape();
  const auto file = GgufFile::open(scratch_path("runner.gguf"));
  ASSERT_TRUE(file);
  const TensorEntry* entry = (*file)->find("blk.1.attn_output.weight");
  ASSERT_NE(entry, nullptr);
  ASSERT_EQ(entry->type, GGML_TYPE_F32);
  const auto* projection = reinterpret_cast<const float*>((*file)->data(*entry));
  const auto dim = static_cast<std::size_t>(shape.head_dim), n_in = static_cast<std::size_t>(shape.n_heads) * dim;
  const int group = shape.n_heads / shape.n_kv_heads;
  std::vector<float> values(37 * dim);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  // Some of the heads have fewer values, one none.
  std::vector<std::span<const float>> of_heads;
  std::vector<std::vector<float>> norms;
  for (int h = 0; h < shape.n_kv_heads; ++h) {
    const std::size_t n = h % 3 == 0 ? 37 : h % 3 == 1 ? 5 : 0;
    of_heads.push_back(std::span<const float>(values).first(n * dim));
    norms.emplace_back(n);
  }
  ASSERT_TRUE(runner(2)->projected_norms(1, of_heads, std::vector<std::span<float>>(norms.begin(), norms.end())));
  for (int kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
    for (std::size_t i = 0; i < norms[kv_head].size(); ++i) {
      double want = 0;
      for (int g = 0; g < group; ++g) {
        for (std::size_t out = 0; out < static_cast<std::size_t>(shape.n_embd); ++out) {
          double sum = 0;
          for (std::size_t d = 0; d < dim; ++d) {
            const std::size_t in = static_cast<std::size_t>(kv_head * group + g) * dim + d;
            sum += static_cast<double>(values[i * dim + d]) * static_cast<double>(projection[out * n_in + in]);
          }
          want += std::abs(sum) / group;
        }
      }
      ASSERT_NEAR(norms[kv_head][i], want, 1e-4 * want) << i;
    }
  }
}

TEST_F(RunnerTest, RefusesTokensOutsideTheVocabularyAndImpossibleThreads) {
  const std::unique_ptr<Runner> run = runner(1);
  NaiveAttention attention(model_->shape(), 1, false);
  std::vector<float> out = logits();
  for (const std::int32_t token : {-1, 320}) EXPECT_FALSE(run->decode(token, 0, attention, out));
  const std::vector<std::int32_t> tokens = {320};
  std::vector<float> hidden(static_cast<std::size_t>(model_->shape().n_embd));
  EXPECT_THAT(run->embed(tokens, hidden).error().message, HasSubstr("token 320"));
  for (const int n_threads : {0, -1, 513}) EXPECT_FALSE(Runner::create(*model_, n_threads, 16));
  EXPECT_FALSE(Runner::create(*model_, 1, 0));
}

// Attention whose output is no number from layer 0 on.
class BrokenAttention final : public Attention {
 public:
  explicit BrokenAttention(std::size_t width) : width_(width) {}
  void decode_partial(int, const float*, const float*, const float*, int, int) noexcept override {}
  void decode_merge(int, float* out, int thread, int) noexcept override { fill(out, 1, thread); }
  void prefill_store(int, const float*, const float*, int, int, int) noexcept override {}
  void prefill_attend(int, const float*, int n_tokens, float* out, int thread, int) noexcept override {
    fill(out, static_cast<std::size_t>(n_tokens), thread);
  }

 private:
  void fill(float* out, std::size_t rows, int thread) const {
    if (thread == 0) std::fill_n(out, rows * width_, std::numeric_limits<float>::infinity());
  }
  std::size_t width_;
};

TEST_F(RunnerTest, NumbersThatAreNotFiniteAreErrorsThatNameTheLayer) {
  const std::unique_ptr<Runner> run = runner(2);
  BrokenAttention attention(static_cast<std::size_t>(model_->shape().n_heads * model_->shape().head_dim));
  std::vector<float> out = logits();
  const Result<void> decoded = run->decode(7, 3, attention, out);
  ASSERT_FALSE(decoded);
  EXPECT_THAT(decoded.error().message, HasSubstr("layer 1 "));  // the first whose inputs were broken
  std::vector<float> hidden(static_cast<std::size_t>(2 * model_->shape().n_embd), 1.0f);
  const Result<void> prefilled = run->layer(0, hidden, 0, false, attention);
  ASSERT_FALSE(prefilled);
  EXPECT_THAT(prefilled.error().message, HasSubstr("layer 0 "));
  // And the runner still works.
  NaiveAttention sound(model_->shape(), 1, false);
  EXPECT_TRUE(run->decode(7, 0, sound, out));
}

TEST_F(RunnerTest, WorkIsDoneOncePerThread) {
  for (const int n_threads : {1, 2, 5}) {
    const std::unique_ptr<Runner> run = runner(n_threads);
    for (int again = 0; again < 3; ++again) {
      std::vector<int> calls(static_cast<std::size_t>(n_threads));  // each thread writes its own
      ASSERT_TRUE(run->on_all_threads([&](int thread, int n) {
        EXPECT_EQ(n, n_threads);
        ++calls.at(static_cast<std::size_t>(thread));
      }));
      EXPECT_EQ(calls, std::vector<int>(static_cast<std::size_t>(n_threads), 1));
    }
  }
}

TEST_F(RunnerTest, WorkspaceIsKnownFromTheStart) {
  const std::unique_ptr<Runner> run = runner(1, 16);
  const std::size_t before = run->workspace_bytes();
  EXPECT_GT(before, 0u);
  NaiveAttention attention(model_->shape(), 16, false);
  std::vector<float> hidden(static_cast<std::size_t>(16 * model_->shape().n_embd), 0.5f);
  ASSERT_TRUE(run->layer(1, hidden, 0, true, attention));
  ASSERT_TRUE(run->layer(0, hidden, 0, false, attention));
  EXPECT_EQ(run->workspace_bytes(), before);
}

}  // namespace
}  // namespace qevict
