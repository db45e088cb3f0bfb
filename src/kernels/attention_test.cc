// Q-ATTN of the worked examples: one softmax over an f16 tier and a quantized one, on every target.
#include "kernels/attention.h"

#include <gmock/gmock.h>

#include "kernels/kernel_test_support.h"

namespace qevict {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

MATCHER_P(Near, tolerance, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance; }

// The window of the examples: fixed reconstructions instead of codes. Record byte 0 chooses the values.
void example_decode(WindowShape, std::span<const std::byte> record, std::span<const std::byte>, std::span<float> keys,
                    std::span<float> values) {
  constexpr float kKeys[] = {0.5f, 0.25f, -2.0f, 0.5f, -1.0f, 0.5f, 1.0f, 0.0f};
  constexpr float kPaper[] = {-1.0f, -0.5f, 0.0f, 0.5f, 0.75f, 0.0f, 0.25f, 0.5f};
  // kXvY: mean (0.25, -0.5, 0, 1) + signs (+ - + +) o H c a / 2, codes 3 0 2 1 with a = 1 and 0 2 1 3 with a = 0.5.
  constexpr float kMean[] = {0.25f, -0.5f, 0.0f, 1.0f};
  constexpr float kSigns[] = {1.0f, -1.0f, 1.0f, 1.0f};
  constexpr float kHadamard[4][4] = {{1, 1, 1, 1}, {1, -1, 1, -1}, {1, 1, -1, -1}, {1, -1, -1, 1}};
  constexpr float kLevels[] = {-1.510f, -0.4528f, 0.4528f, 1.510f};
  constexpr int kCodes[2][4] = {{3, 0, 2, 1}, {0, 2, 1, 3}};
  constexpr float kScale[] = {1.0f, 0.5f};
  std::copy(kKeys, kKeys + 8, keys.begin());
  std::copy(kPaper, kPaper + 8, values.begin());
  if (record[0] == std::byte{0}) return;
  for (int t = 0; t < 2; ++t) {
    for (int d = 0; d < 4; ++d) {
      float sum = 0.0f;
      for (int i = 0; i < 4; ++i) sum += kHadamard[d][i] * kLevels[kCodes[t][i]];
      values[4 * t + d] = kMean[d] + kSigns[d] * sum * kScale[t] / 2.0f;
    }
  }
}
std::size_t one_byte(WindowShape) { return 1; }
constexpr CodecRow kExampleCodec{
    .name = "example", .summary = "", .source = "", .window_bytes = &one_byte, .decode = &example_decode};

class QAttn : public ::testing::Test {
 protected:
  QAttn() {
    head_.shape = {.key_dim = 4, .value_dim = 4, .group = 1};
    head_.rope = {.frequency = {1.0f, 0.01f}, .magnitude = 1.0f, .neox = true};
    const std::vector<std::vector<float>> keys = {{1, 0.5f, -0.5f, 2}, {0.5f, -1, 1.5f, 0.25f}, {-0.75f, 1, 0.5f, 1}};
    const std::vector<float> values = {1, 0, -1, 0.5f, 0.5f, 2, 0, -1, -0.5f, 1, 1, 0};
    const int positions[] = {0, 3, 4};
    for (int i = 0; i < 3; ++i) {
      std::vector<float> key = keys[i];
      head_.rope.rotate(key, positions[i]);
      for (float k : key) head_.keys.push_back(to_half(k));
    }
    for (float v : values) head_.values.push_back(to_half(v));
    // The sink and the recent region are runs of their own.
    head_.runs = {{head_.keys.data(), head_.values.data(), 1, 0},
                  {head_.keys.data() + 4, head_.values.data() + 4, 2, 1}};
    head_.records = {{std::byte{0}}};
    head_.windows = {{head_.records[0].data(), 1}};
    head_.codec = &kExampleCodec;
    head_.window = {2, 4, 4};
    head_.rope.rotate(query_, 4);
  }

  TestPartial f16() { return decode_range(head_, {0, 3, false}, query_, 0.5f); }
  TestPartial codes() { return decode_range(head_, {0, 2, true}, query_, 0.5f); }
  std::vector<double> merged() {
    TestPartial all = f16(), window = codes();
    merge_partial(head_.shape, all.view(), window.view());
    return all.output();
  }

  TestHead head_;
  std::vector<float> query_ = {1, -0.5f, 0.75f, 1.5f};
};

// Keys 0, 3, 4 are stored as f16 after rotation, so the figures are those of the examples' f16 line.
TEST_F(QAttn, QAttn1OneSoftmaxOverAllTiers) {
  for_each_target([&] {
    EXPECT_THAT(merged(), Pointwise(Near(2e-6), {0.416844, 0.578392, -0.219806, 0.040598}));
    const TestPartial f = f16(), q = codes();
    const double logits[] = {1.607647, 1.356350, 0.312504, 0.630402, 0.715179};
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(f.max[0] + std::log(f.weights[i]), logits[i], 2e-6);
    for (int i = 0; i < 2; ++i) EXPECT_NEAR(q.max[0] + std::log(q.weights[i]), logits[3 + i], 2e-6);
  });
}

// Turning the query back by the key's position is the same as turning the key.
TEST_F(QAttn, QAttn2TheQueryMayTurnInsteadOfTheKey) {
  std::vector<float> query = query_;
  head_.rope.unrotate(query, 1);
  EXPECT_THAT(query, Pointwise(FloatNear(2e-6f), {-1.095833f, -0.544768f, -0.601374f, 1.484327f}));
  for_each_target([&] {
    const TestPartial q = codes();
    EXPECT_NEAR(q.max[0] + std::log(q.weights[0]), 0.630402, 2e-6);
    EXPECT_GT(std::abs(q.max[0] - 1.525278), 0.5);  // keys left unrotated would say this
  });
}

TEST_F(QAttn, QAttn3StatesMergeIntoTheOnePassAnswer) {
  for_each_target([&] {
    const TestPartial q = codes();
    EXPECT_NEAR(q.max[0], 0.715179, 1e-6);
    EXPECT_NEAR(q.denom[0], 1.918717, 2e-6);
    EXPECT_THAT(q.acc, Pointwise(FloatNear(2e-6f), {-0.168717f, -0.459359f, 0.25f, 0.959359f}));
    const TestPartial f = f16();
    EXPECT_NEAR(f.max[0], 1.607647, 1e-4);
    EXPECT_NEAR(f.denom[0], 2.051902, 5e-4);  // of unrounded keys
    EXPECT_THAT(f.acc, Pointwise(FloatNear(1e-3f), {1.252094f, 1.829947f, -0.726143f, -0.278045f}));
    const std::vector<double> one = f.output(), other = q.output();
    const double averaged = (one[0] + other[0]) / 2;  // a bug
    EXPECT_GT(std::abs(merged()[0] - averaged), 0.1);
  });
}

TEST_F(QAttn, QAttn4ValuesThatAreRotatedAndCentred) {
  head_.records[0][0] = std::byte{1};
  for_each_target([&] {
    EXPECT_THAT(merged(), Pointwise(Near(2e-4), {0.510446, 0.387711, -0.332176, 0.319187}));
    const TestPartial q = codes();
    const double share = 0.276963 / q.denom[0];
    const double expected[] = {0.069241, -0.257115, -0.076302, 0.417163};
    for (int d = 0; d < 4; ++d) EXPECT_NEAR(q.acc[d] * share, expected[d], 5e-6);
  });
}

TEST(CutRanges, CutsAtMultiplesOfTheRangeAndWholeWindows) {
  const auto ranges = cut_ranges(2 * kRangeTokens + 1, kRangeTokens + 24, 8);
  ASSERT_EQ(ranges.size(), 5u);
  EXPECT_EQ(ranges[2].begin, 2 * kRangeTokens);
  EXPECT_EQ(ranges[2].end, 2 * kRangeTokens + 1);
  EXPECT_TRUE(ranges[3].codes && ranges[4].codes);
  EXPECT_EQ(ranges[4].begin, kRangeTokens);
  EXPECT_EQ(ranges[4].end, kRangeTokens + 24);
  EXPECT_TRUE(cut_ranges(0, 0, 8).empty());
}

TEST(Targets, TheForcedTargetIsTheOneThatRuns) {
  const std::string_view before = simd_target();
  const auto all = simd_targets();
  EXPECT_EQ(all.front(), before);
  EXPECT_EQ(all.back(), "reference");
  for (const std::string_view name : all) {
    ASSERT_TRUE(force_simd_target(name));
    EXPECT_EQ(simd_target(), name);
  }
  EXPECT_TRUE(force_simd_target("Reference"));  // any case
  EXPECT_FALSE(force_simd_target("AVX9"));
  EXPECT_EQ(simd_target(), "reference");
  ASSERT_TRUE(force_simd_target(before));
}

}  // namespace
}  // namespace qevict
