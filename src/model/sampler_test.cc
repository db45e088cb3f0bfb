#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "model/text.h"

namespace qevict {
namespace {

std::unique_ptr<Sampler> sampler(const SamplerOptions& options) {
  auto made = Sampler::create(options);
  EXPECT_TRUE(made);
  return std::move(*made);
}

std::vector<float> some_logits() { return {0.5f, 3.0f, -1.0f, 2.9f, 0.0f}; }

TEST(Sampler, TemperatureZeroTakesTheBest) {
  auto greedy = sampler({.temperature = 0.0f});
  auto nearly = sampler({.temperature = 1e-30f});
  for (int i = 0; i < 5; ++i) {
    std::vector<float> logits = some_logits();
    EXPECT_EQ(greedy->sample(logits), 1);
    EXPECT_EQ(nearly->sample(logits), 1);
  }
}

TEST(Sampler, SameSeedSameTokens) {
  const auto draw = [](std::uint32_t seed) {
    auto drawn = sampler({.temperature = 1.5f, .top_p = 1.0f, .min_p = 0.0f, .seed = seed});
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 50; ++i) {
      std::vector<float> logits = some_logits();
      tokens.push_back(drawn->sample(logits));
    }
    return tokens;
  };
  EXPECT_EQ(draw(4), draw(4));
  EXPECT_NE(draw(4), draw(5));
  const std::vector<std::int32_t> tokens = draw(4);
  EXPECT_GT(std::set(tokens.begin(), tokens.end()).size(), 2u);
}

TEST(Sampler, TopKTopPAndMinPCut) {
  for (const SamplerOptions& options :
       {SamplerOptions{.temperature = 5.0f, .top_k = 2}, SamplerOptions{.temperature = 5.0f, .top_k = 0, .min_p = 0.8f},
        SamplerOptions{.temperature = 1.0f, .top_k = 0, .top_p = 0.8f, .min_p = 0.0f}}) {
    auto cut = sampler(options);
    for (int i = 0; i < 60; ++i) {
      std::vector<float> logits = some_logits();
      const std::int32_t token = cut->sample(logits);
      EXPECT_TRUE(token == 1 || token == 3) << token;
    }
  }
}

TEST(Sampler, RepeatPenaltySeesSampledAndAcceptedTokens) {
  auto penalized = sampler({.temperature = 0.0f, .repeat_penalty = 1.5f, .repeat_last_n = 2});
  const auto next = [&] {
    std::vector<float> logits = some_logits();
    return penalized->sample(logits);
  };
  EXPECT_EQ(next(), 1);
  EXPECT_EQ(next(), 3);  // 3.0 / 1.5 < 2.9
  penalized->accept(4);
  penalized->accept(4);  // pushes both out of the last two
  EXPECT_EQ(next(), 1);
}

TEST(Sampler, BannedTokensNeverCome) {
  for (const float temperature : {0.0f, 3.0f}) {
    auto banning = sampler({.temperature = temperature, .min_p = 0.0f});
    const std::int32_t banned[] = {1, 3, 99, -1};
    banning->ban(banned);
    for (int i = 0; i < 50; ++i) {
      std::vector<float> logits = some_logits();
      const std::int32_t token = banning->sample(logits);
      EXPECT_TRUE(token != 1 && token != 3);
    }
  }
}

TEST(Sampler, ImpossibleOptionsAreInvalid) {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  const SamplerOptions impossible[] = {
      {.temperature = -0.1f},
      {.temperature = nan},
      {.temperature = infinity},
      {.top_k = -1},
      {.top_p = 0.0f},
      {.top_p = 1.1f},
      {.top_p = nan},
      {.min_p = -0.1f},
      {.min_p = 1.1f},
      {.repeat_penalty = 0.0f},
      {.repeat_penalty = nan},
      {.repeat_last_n = -1},
      {.repeat_penalty = 1e-45f},
      {.seed = 0xffffffffu},
  };
  for (const SamplerOptions& options : impossible) {
    auto made = Sampler::create(options);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().kind, Error::Kind::invalid);
  }
}

}  // namespace
}  // namespace qevict
