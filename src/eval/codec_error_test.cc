#include "eval/codec_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "codec/codec.h"

namespace qevict {
namespace {

std::map<std::string, CodecError> by_name(const AttentionSet& set) {
  std::map<std::string, CodecError> result;
  for (const CodecError& error : codec_errors(set)) result[error.codec] = error;
  return result;
}

TEST(CodecErrors, BytesAreTheCodecsOwn) {
  const std::vector<AttentionSet> sets = synthetic_attention(64, 64);
  const auto errors = by_name(sets.front());
  EXPECT_EQ(errors.size(), codecs().size() + 1);
  EXPECT_EQ(errors.at("f16").bytes_per_token, 256);
  EXPECT_EQ(errors.at("f16").bits_per_element, 16);
  EXPECT_EQ(errors.at("int2").bytes_per_token, 68);
  EXPECT_EQ(errors.at("int2").bits_per_element, 4.25);
  EXPECT_EQ(errors.at("k3v2").bytes_per_token, 42);
  EXPECT_EQ(errors.at("k3v2").bits_per_element, 2.625);
  EXPECT_EQ(errors.at("k3v2").bytes_per_head, 384u);
  EXPECT_EQ(errors.at("q8_0").bytes_per_token, 136);
  EXPECT_EQ(errors.at("q8_0").bits_per_element, 8.5);
  EXPECT_EQ(errors.at("q4_0").bits_per_element, 4.5);
  EXPECT_EQ(errors.at("kivi-2").window_tokens, 32);
  EXPECT_EQ(errors.at("kivi-2").bytes_per_token, 48);
  EXPECT_EQ(errors.at("kivi-2").bits_per_element, 3);
  EXPECT_EQ(errors.at("nuq3").window_tokens, 32);
  EXPECT_EQ(errors.at("nuq3").bytes_per_token, 60.125);
  EXPECT_EQ(errors.at("zip42").window_tokens, 60);  // of 64 tokens; its own are 100
}

TEST(CodecErrors, CodecsThatDoNotTakeTheShapeAreLeftOut) {
  const auto errors = by_name(synthetic_attention(80, 32).front());
  EXPECT_TRUE(errors.contains("k3v2"));
  EXPECT_FALSE(errors.contains("q8_0"));
  EXPECT_FALSE(errors.contains("kivi-2"));
}

// A sample whose figures can be done by hand: two tokens' worth of scores, one of them moved by the halves.
TEST(CodecErrors, HalvesOfExactNumbersHaveNone) {
  AttentionSet set = synthetic_attention(64, 32).front();
  for (AttentionSample& sample : set.samples)
    for (std::vector<float>* rows : {&sample.keys, &sample.values})
      for (float& x : *rows) x = static_cast<float>(static_cast<int>(x * 8)) / 8;  // halves hold these
  const CodecError f16 = by_name(set).at("f16");
  EXPECT_EQ(f16.scores, 0);
  EXPECT_EQ(f16.outputs, 0);
  EXPECT_NEAR(f16.cosine, 1, 1e-12);
  EXPECT_NEAR(f16.kl, 0, 1e-12);
}

// 8-bit blocks of normal data: a step of max / 127, the largest of 32 normals being 2.07 on average in magnitude 2.33.
TEST(CodecErrors, ScoresOfEightBitsAreOffByAStepsDeviation) {
  const CodecError error = by_name(synthetic_attention(64, 512).front()).at("q8_0");
  EXPECT_NEAR(error.scores, 2.33 / 127 / std::sqrt(12.0), 0.0006);
}

// The first tokens of a text have keys of another size than all others; methods keep them.
TEST(CodecErrors, SinksAreKept) {
  AttentionSet set = synthetic_attention(64, 133).front();
  for (AttentionSample& sample : set.samples)
    for (int i = 0; i < 5 * 64; ++i) sample.keys[static_cast<std::size_t>(i)] *= 100;
  const CodecError coded = by_name(set).at("k3v2");
  set.sink_tokens = 5;
  const CodecError kept = by_name(set).at("k3v2");
  EXPECT_LT(kept.scores, coded.scores / 10);
  EXPECT_LT(kept.kl, coded.kl);
}

// The second window of 100 begins 8 tokens before the first one ends; no token is left as it was.
TEST(CodecErrors, WindowsThatDoNotDivideTheTokensOverlap) {
  AttentionSet set = synthetic_attention(64, 192).front();
  const CodecError error = by_name(set).at("zip42");
  EXPECT_EQ(error.window_tokens, 100);
  EXPECT_EQ(error.bytes_per_token, 61.73);
  for (AttentionSample& sample : set.samples) sample.scores.assign(192, 0.0f);
  for (AttentionSample& sample : set.samples) {
    sample.scores[191] = 1;
    // Attention to the last token alone: its own code is the error.
    for (float& query : sample.queries) query = 0;
    std::fill(sample.values.begin(), sample.values.end() - 64, 0.0f);
  }
  const CodecError four_bits = by_name(set).at("zip42");
  for (AttentionSample& sample : set.samples) sample.scores[191] = -1;
  const CodecError two_bits = by_name(set).at("zip42");
  EXPECT_GT(four_bits.outputs, 0);
  EXPECT_GT(two_bits.outputs, 2 * four_bits.outputs);
}

TEST(CodecErrors, ACalibrationTakesTheEstimatesPlace) {
  AttentionSet set = synthetic_attention(64, 64).front();
  NuqCalibration calibration{{"", static_cast<int>(set.samples.size()), 1, 64, 64, 0}, {}};
  for (std::size_t i = 0; i < set.samples.size(); ++i) {
    NuqLayer& layer = calibration.layers.emplace_back();
    layer.ranges.assign(64, nuq_range(-3, 3));
    for (int bits = 2; bits <= 4; ++bits)
      for (int level = 0; level < 1 << bits; ++level)
        for (auto* tables : {&layer.key_levels, &layer.value_levels})
          (*tables)[static_cast<std::size_t>(bits - 2)].push_back(static_cast<float>(2 * level + 1 - (1 << bits)) /
                                                                  static_cast<float>(1 << bits));
  }
  const auto plain = by_name(set);
  set.calibration = &calibration;
  const auto calibrated = by_name(set);
  // Four equal steps of normal data beat NormalFloat's levels: .16 of the energy against .32.
  EXPECT_LT(calibrated.at("nuq2").scores, plain.at("nuq2").scores);
  EXPECT_EQ(calibrated.at("zip42").scores, plain.at("zip42").scores);
  EXPECT_EQ(calibrated.at("k3v2").scores, plain.at("k3v2").scores);
}

TEST(CodecErrors, OrderIsAsKnown) {
  std::map<std::string, std::map<std::string, CodecError>> sets;
  for (const AttentionSet& set : synthetic_attention(64, 256)) sets[set.name] = by_name(set);
  ASSERT_EQ(sets.size(), 4u);
  for (auto& [name, errors] : sets) {
    for (const auto& [codec, error] : errors) {
      EXPECT_GE(error.kl, 0) << name << codec;
      EXPECT_LE(error.cosine, 1 + 1e-9) << name << codec;
      EXPECT_TRUE(std::isfinite(error.scores) && std::isfinite(error.outputs)) << name << codec;
    }
    EXPECT_LT(errors["f16"].kl, errors["q8_0"].kl) << name;
    EXPECT_LT(errors["k4v4"].kl, errors["k3v3"].kl) << name;
    EXPECT_LT(errors["k3v3"].kl, errors["k2v2"].kl) << name;
    EXPECT_LT(errors["q8_0"].kl, errors["q4_0"].kl) << name;
    EXPECT_LT(errors["kivi-4"].kl, errors["kivi-2"].kl) << name;
  }
  // Means are frozen per head before RoPE: k4v4 does not see them. Blocks after RoPE are ruined.
  EXPECT_LT(sets["means x100"]["k4v4"].scores, 10 * sets["gaussian"]["k4v4"].scores);
  EXPECT_LT(sets["outliers"]["q4_0r"].outputs, sets["outliers"]["q4_0"].outputs);
}

}  // namespace
}  // namespace qevict
