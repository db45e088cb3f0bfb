// KVQuant: the worked example of baselines.md 6.2, exact bytes, outliers and their places.
#include "codec/nuq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "codec/record.h"

namespace qevict {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

constexpr float kHalfStep = 0x1p-11f;  // of a number stored in f16, relative

Floats normals(Rng& rng, std::size_t n) {
  Floats x(n);
  for (float& value : x) value = static_cast<float>(rng.normal());
  return x;
}

// Code of channel c of token t, of rows of dim channels at `part`.
int code_at(const Bytes& record, std::size_t part, int bits, int dim, int t, int c) {
  int code = 0;
  for (int k = 0; k < bits; ++k) {
    const int bit = t * dim * bits + c * bits + k;
    code |= (std::to_integer<int>(record[part + static_cast<std::size_t>(bit / 8)]) >> bit % 8 & 1) << k;
  }
  return code;
}

int count_at(const Bytes& record, std::size_t at) {
  return std::to_integer<int>(record[at]) | std::to_integer<int>(record[at + 1]) << 8;
}

struct Coded {
  Bytes head, record;
  Floats keys, values;
};

Coded coded(const CodecRow& codec, WindowShape shape, const Floats& keys, const Floats& values, const TokenSide& side,
            Bytes head) {
  if (head.empty()) {
    head.resize(codec.head_bytes(shape));
    codec.estimate_head(shape, keys, values, head);
  }
  Coded out{std::move(head), Bytes(codec.window_bytes(shape)), Floats(keys.size()), Floats(values.size())};
  EXPECT_TRUE(codec.encode_with(shape, keys, values, side, out.head, out.record));
  codec.decode(shape, out.record, out.head, out.keys, out.values);
  return out;
}

const Floats kExampleLevels = {-.8f, -.2f, .25f, .9f};
constexpr WindowShape kSmall{16, 8, 8};  // two places for outliers of keys and of values
constexpr NuqLayout kSmallLayout{kSmall, 2};

// Every channel of keys in [-2, 2].
Bytes example_head(const Floats& levels) {
  Bytes head(kSmallLayout.head_bytes());
  store_nuq_head(kSmallLayout, std::vector<NuqRange>(8, nuq_range(-2, 2)), levels, levels, head);
  return head;
}

TEST(TKvq, KeysOfAChannel) {
  Floats keys(16 * 8), values(16 * 8);
  const float x[] = {-1.9f, -.1f, .7f}, back[] = {-1.6f, -.4f, .5f};
  for (int t = 0; t < 3; ++t) std::fill_n(keys.begin() + t * 8, 8, x[t]);
  keys[3 * 8 + 5] = 3.5f;
  const Coded out = coded(*find_codec("nuq2"), kSmall, keys, values, {}, example_head(kExampleLevels));
  for (int t = 0; t < 3; ++t)
    for (int c = 0; c < 8; ++c) {
      EXPECT_EQ(code_at(out.record, kSmallLayout.key_codes(), 2, 8, t, c), t);
      EXPECT_NEAR(out.keys[t * 8 + c], back[t], std::abs(back[t]) * kHalfStep);
    }
  EXPECT_EQ(out.keys[3 * 8 + 5], 3.5f);
  EXPECT_EQ(count_at(out.record, kSmallLayout.counts()), 1);
  EXPECT_EQ(count_at(out.record, kSmallLayout.key_outliers()), 3 * 8 + 5);
}

TEST(TKvq, AValueRow) {
  const Floats row = {.1f, -.2f, .05f, 4, .3f, -.1f, -3, .2f};
  const Floats back = {.1125f, -.15f, 0, 4, .275f, -.15f, -3, .275f};
  const int codes[] = {2, 0, 1, -1, 3, 0, -1, 3};
  Floats ranges(2);
  nuq_value_ranges(row, 1, 8, ranges);
  EXPECT_NEAR(ranges[0], -2.902f, 1e-6f);
  EXPECT_NEAR(ranges[1], 3.8705f, 1e-6f);
  const NuqRange stored = nuq_value_range(row, ranges[0], ranges[1]);
  EXPECT_NEAR(to_float(stored.offset), .05f, .05f * kHalfStep);
  EXPECT_NEAR(to_float(stored.range), .25f, 2 * .25f * kHalfStep);

  Floats keys(16 * 8), values(16 * 8);
  std::ranges::copy(row, values.begin() + 9 * 8);
  Floats all_ranges;
  for (int t = 0; t < 16; ++t) all_ranges.insert(all_ranges.end(), {-100, 100});
  std::ranges::copy(ranges, all_ranges.begin() + 2 * 9);
  const Coded out =
      coded(*find_codec("nuq2"), kSmall, keys, values, {.value_ranges = all_ranges}, example_head(kExampleLevels));
  EXPECT_EQ(count_at(out.record, kSmallLayout.counts() + 2), 2);
  for (int c = 0; c < 8; ++c) {
    if (codes[c] < 0) {
      EXPECT_EQ(out.values[9 * 8 + c], row[c]);
      continue;
    }
    EXPECT_EQ(code_at(out.record, kSmallLayout.value_codes(), 2, 8, 9, c), codes[c]);
    EXPECT_NEAR(out.values[9 * 8 + c], back[c], .3f * 2 * kHalfStep);
  }
}

// At W = 192 2 of 192 numbers are outliers, at 1024 12; per head of 64 channels there would be 2 of 64.
TEST(Nuq, ThresholdsAreOfTheLayersRow) {
  Rng rng(1);
  for (const auto& [heads, dim, expected] : {std::tuple{3, 64, 2}, {8, 128, 12}, {1, 64, 2}}) {
    const int tokens = 5;
    const Floats values = normals(rng, static_cast<std::size_t>(heads * tokens * dim));
    Floats ranges(2 * tokens);
    nuq_value_ranges(values, heads, dim, ranges);
    for (int t = 0; t < tokens; ++t) {
      int outliers = 0;
      for (int h = 0; h < heads; ++h)
        for (int c = 0; c < dim; ++c) {
          const float x = values[(h * tokens + t) * dim + c];
          outliers += x <= ranges[2 * t] || x >= ranges[2 * t + 1];
        }
      EXPECT_EQ(outliers, expected);
    }
  }
}

TEST(Nuq, Quantiles) {
  const auto quantile = [](Floats x, double share) { return nuq_quantile(x, share); };
  EXPECT_EQ(quantile({3, 1, 2}, 0), 1);
  EXPECT_EQ(quantile({3, 1, 2}, .25), 1.5f);
  EXPECT_EQ(quantile({3, 1, 2}, 1), 3);
  EXPECT_EQ(quantile({7}, .995), 7);
}

TEST(Nuq, ARangeCoversItsEnds) {
  Rng rng(2);
  for (int i = 0; i < 1000; ++i) {
    const float middle = static_cast<float>(rng.normal() * std::pow(10, rng.between(-3, 3)));
    const float lowest = middle - static_cast<float>(rng.uniform()),
                highest = middle + static_cast<float>(rng.uniform());
    const NuqRange stored = nuq_range(lowest, highest);
    const float offset = to_float(stored.offset), range = to_float(stored.range);
    EXPECT_LE(offset - range, lowest);
    EXPECT_GE(offset + range, highest);
    const float rounding = std::max(std::abs(offset), range) * 2 * kHalfStep;
    EXPECT_LE(range, (highest - lowest) / 2 + 2 * rounding + 0x1p-14f);
  }
}

TEST(Nuq, ExactBytes) {
  // A token, D = 64: 2 x 64 b / 8 of codes, 4 of offset and range, 2 places of 4; 4 of counts a window.
  for (const auto& [name, bits] : {std::pair{"nuq2", 2}, {"nuq3", 3}, {"nuq4", 4}}) {
    const CodecRow& codec = *find_codec(name);
    for (const int tokens : {32, 64, 128})
      EXPECT_EQ(codec.window_bytes({tokens, 64, 64}), static_cast<std::size_t>(tokens * (16 * bits + 4 + 8) + 4));
    EXPECT_EQ(codec.window_bytes({1, 64, 128}), static_cast<std::size_t>(24 * bits + 4 + 4 + 4 + 8));
    EXPECT_EQ(codec.head_bytes({32, 64, 128}), static_cast<std::size_t>(4 * 64 + 4 * (1 << bits)));
  }
}

TEST(Nuq, ShapesThatAreRefused) {
  for (const char* name : {"nuq2", "nuq3", "nuq4"}) {
    const auto& supports = find_codec(name)->supports;
    EXPECT_TRUE(supports({1, 8, 8}));
    EXPECT_TRUE(supports({256, 256, 128}));
    EXPECT_TRUE(supports({128, 512, 512}));
    for (const WindowShape& shape : {WindowShape{0, 64, 64},
                                     {32, 60, 64},
                                     {32, 64, 68},
                                     {32, 0, 64},
                                     {32, 64, -8},
                                     {32, 520, 64},
                                     {256, 264, 64},
                                     {256, 64, 512},
                                     {-32, 64, 64}})
      EXPECT_FALSE(supports(shape)) << shape.tokens << " " << shape.key_dim << " " << shape.value_dim;
  }
}

// Inliers are off by half the widest gap between levels, outliers by the rounding to f16.
TEST(Nuq, ErrorsAreWithinTheStep) {
  Rng rng(3);
  const WindowShape shape{32, 64, 64};
  for (const auto& [name, bits] : {std::pair{"nuq2", 2}, {"nuq3", 3}, {"nuq4", 4}}) {
    const NuqLayout layout{shape, bits};
    const Floats keys = normals(rng, 32 * 64), values = normals(rng, 32 * 64);
    const Coded out = coded(*find_codec(name), shape, keys, values, {}, {});
    const auto levels = normal_float_levels(bits);
    float gap = 0;
    for (std::size_t i = 1; i < levels.size(); ++i) gap = std::max(gap, levels[i] - levels[i - 1]);
    int exact_keys = 0, exact_values = 0, clamped = 0;
    for (int i = 0; i < 32 * 64; ++i) {
      const auto check = [&](float x, float back, float range, int& exact) {
        const float error = std::abs(x - back);
        if (error <= std::abs(x) * kHalfStep)
          ++exact;
        else if (error > range * (gap / 2 + 4 * kHalfStep))
          ++clamped;
      };
      const std::span<const std::byte> head = out.head, record = out.record;
      check(keys[i], out.keys[i], to_float(load_half(head.subspan(layout.ranges()), i % 64)), exact_keys);
      check(values[i], out.values[i], to_float(load_half(record.subspan(layout.value_ranges()), i / 64)), exact_values);
    }
    EXPECT_GE(exact_keys, count_at(out.record, layout.counts()));
    EXPECT_GE(exact_values, count_at(out.record, layout.counts() + 2));
    // 22 of 2048 values; 2 of 32 keys of each channel, more than there are places.
    EXPECT_EQ(count_at(out.record, layout.counts() + 2), 22);
    EXPECT_EQ(count_at(out.record, layout.counts()), 32);
    EXPECT_LE(clamped, 2 * 64 - 32);
  }
}

TEST(Nuq, TheLeastExtremeOutliersAreClamped) {
  Floats keys(16 * 8), values(16 * 8);
  keys[7] = 3.5f;
  keys[50] = -2.5f;
  keys[100] = 9;
  const Floats levels = {-1, 0, .33792f, 1};
  const Coded out = coded(*find_codec("nuq2"), kSmall, keys, values, {}, example_head(levels));
  EXPECT_EQ(count_at(out.record, kSmallLayout.counts()), 2);
  EXPECT_EQ(out.keys[7], 3.5f);
  EXPECT_EQ(out.keys[50], -2);
  EXPECT_EQ(out.keys[100], 9);
}

TEST(Nuq, CodesOfDecodedKeysAreTheSame) {
  Rng rng(4);
  const WindowShape shape{32, 64, 64};
  for (const auto& [name, bits] : {std::pair{"nuq2", 2}, {"nuq3", 3}, {"nuq4", 4}}) {
    const NuqLayout layout{shape, bits};
    const Floats keys = normals(rng, 32 * 64), values = normals(rng, 32 * 64);
    const Coded once = coded(*find_codec(name), shape, keys, values, {}, {});
    const Coded twice = coded(*find_codec(name), shape, once.keys, values, {}, once.head);
    EXPECT_EQ(twice.keys, once.keys);
    EXPECT_TRUE(std::equal(once.record.begin(), once.record.begin() + static_cast<std::ptrdiff_t>(layout.value_codes()),
                           twice.record.begin()));
  }
}

TEST(Nuq, DamagedIndicesStayInside) {
  Rng rng(5);
  const Floats keys = normals(rng, 16 * 8), values = normals(rng, 16 * 8);
  Coded out = coded(*find_codec("nuq2"), kSmall, keys, values, {}, {});
  std::fill(out.record.begin() + static_cast<std::ptrdiff_t>(kSmallLayout.counts()), out.record.end(), std::byte{0xff});
  find_codec("nuq2")->decode(kSmall, out.record, out.head, out.keys, out.values);
  for (const float x : out.keys) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace qevict
