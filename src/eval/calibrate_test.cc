#include "eval/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "eval/codec_error.h"
#include "support/scratch.h"
#include "support/tiny_model.h"

namespace qevict {
namespace {

using testing::scratch_path;
using testing::TinyModel;

constexpr int kSinks = 5;

class Calibrate : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = scratch_path("calibrate.gguf");
    TinyModel{.architecture = "qwen2", .n_heads = 4, .n_kv_heads = 2, .qkv_bias = true}.write(path);
    Result<Model> loaded = Model::load(path);
    ASSERT_TRUE(loaded) << loaded.error().message;
    model_ = std::make_unique<Model>(*std::move(loaded));
    Rng rng(1);
    for (int i = 0; i < 300; ++i) tokens_.push_back(static_cast<Token>(3 + rng.below(250)));
  }
  Result<NuqCalibration> calibrate(int samples, int sample_tokens, const EvalProgress& progress = {}) const {
    return calibrate_nuq(*model_, tokens_,
                         {.samples = samples, .sample_tokens = sample_tokens, .sink_tokens = kSinks, .n_threads = 2},
                         progress);
  }

  std::unique_ptr<Model> model_;
  std::vector<Token> tokens_;
};

// The same prefill, captured: keys before RoPE behind the sinks, of two samples of 128.
TEST_F(Calibrate, RangesAreThePercentilesOfEachChannel) {
  const Result<NuqCalibration> calibration = calibrate(2, 128);
  ASSERT_TRUE(calibration) << calibration.error().message;
  EXPECT_EQ(calibration->model, nuq_model(model_->info()));
  ASSERT_EQ(calibration->layers.size(), 2u);
  std::vector<AttentionSet> sets;
  for (const std::size_t at : {0, 128}) {
    Result<AttentionSet> set = capture_attention(*model_, std::span(tokens_).subspan(at, 128), 1, 2);
    ASSERT_TRUE(set);
    sets.push_back(*std::move(set));
  }
  for (std::size_t layer = 0; layer < 2; ++layer)
    for (std::size_t head = 0; head < 2; ++head)
      for (std::size_t c = 0; c < 64; ++c) {
        std::vector<float> channel;
        for (const AttentionSet& set : sets)
          for (std::size_t t = kSinks; t < 128; ++t) {
            const auto& keys = set.samples[2 * layer + head].keys;
            std::vector<float> key(&keys[t * 64], &keys[t * 64] + 64);
            set.rope.unrotate(key, static_cast<double>(t));
            channel.push_back(key[c]);
          }
        const float lowest = nuq_quantile(channel, .005);
        const NuqRange expected = nuq_range(lowest, nuq_quantile(channel, .995));
        const NuqRange got = calibration->layers[layer].ranges[head * 64 + c];
        EXPECT_EQ(got.offset, expected.offset);
        EXPECT_EQ(got.range, expected.range);
      }
}

TEST_F(Calibrate, TablesAreAscendingAndTheSameOnEveryRun) {
  const Result<NuqCalibration> once = calibrate(3, 100), again = calibrate(3, 100), longer = calibrate(16, 512);
  ASSERT_TRUE(once && again && longer);
  for (std::size_t layer = 0; layer < 2; ++layer)
    for (std::size_t bits = 2; bits <= 4; ++bits)
      for (const auto tables : {&NuqLayer::key_levels, &NuqLayer::value_levels}) {
        const std::vector<float>& levels = (once->layers[layer].*tables)[bits - 2];
        EXPECT_EQ(levels.size(), std::size_t{1} << bits);
        EXPECT_TRUE(std::ranges::is_sorted(levels));
        EXPECT_GE(levels.front(), -1);
        EXPECT_LE(levels.back(), 1);
        EXPECT_EQ(levels, (again->layers[layer].*tables)[bits - 2]);
        EXPECT_NE(levels, (longer->layers[layer].*tables)[bits - 2]);
      }
}

TEST_F(Calibrate, Refusals) {
  EXPECT_NE(calibrate(1, 10).error().message.find("10 tokens"), std::string::npos);
  EXPECT_NE(calibrate(1, 4096).error().message.find("4096"), std::string::npos);
  EXPECT_EQ(calibrate(2, 128, [](double) { return false; }).error().kind, Error::Kind::interrupted);
  tokens_.resize(30);
  EXPECT_NE(calibrate(2, 128).error().message.find("30 tokens"), std::string::npos);
}

}  // namespace
}  // namespace qevict
