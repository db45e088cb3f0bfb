// ZipCache: the worked examples of baselines.md 6.3, exact bytes, and who gets the 4 bits.
#include "codec/zip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "codec/record.h"

namespace qevict {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

constexpr float kHalfStep = 0x1p-11f;  // of a number stored in f16, relative

const CodecRow& codec() { return *find_codec("zip42"); }

Floats normals(Rng& rng, std::size_t n) {
  Floats x(n);
  for (float& value : x) value = static_cast<float>(rng.normal());
  return x;
}

struct Coded {
  Bytes record;
  Floats keys, values;
};

Coded coded(WindowShape shape, const Floats& keys, const Floats& values, const Floats& scores) {
  Coded out{Bytes(codec().window_bytes(shape)), Floats(keys.size()), Floats(values.size())};
  EXPECT_TRUE(codec().encode_with(shape, keys, values, {.scores = scores}, {}, out.record));
  codec().decode(shape, out.record, {}, out.keys, out.values);
  return out;
}

std::set<int> not_salient(const Bytes& record, int tokens) {
  std::set<int> result;
  for (int t = 0; t < tokens; ++t)
    if ((std::to_integer<int>(record[static_cast<std::size_t>(t / 8)]) >> t % 8 & 1) == 0) result.insert(t);
  return result;
}

// The n lowest.
std::set<int> lowest(const Floats& scores, std::size_t n) {
  std::set<int> result;
  while (result.size() < n) {
    int at = -1;
    for (int i = 0; i < static_cast<int>(scores.size()); ++i)
      if (!result.contains(i) && (at < 0 || scores[i] < scores[at])) at = i;
    result.insert(at);
  }
  return result;
}

TEST(TZip, SaliencyOfTwoProbes) {
  const Floats last = {.3f, .1f, .1f, .2f, .2f, .1f}, earlier = {.5f, .2f, .3f};
  const std::vector<ZipProbe> probes = {{5, last}, {2, earlier}};
  Floats scores(6);
  zip_saliency(probes, ZipNormalisation::visible_probes, scores);
  const float visible[] = {.4f, .15f, .2f, .2f, .2f, .1f};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(scores[i], visible[i], 1e-6f);
  EXPECT_EQ(lowest(scores, 2), (std::set{1, 5}));
  zip_saliency(probes, ZipNormalisation::code, scores);
  const float code[] = {.133333f, .06f, .1f, .066667f, .1f, .1f};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(scores[i], code[i], 1e-6f);
  EXPECT_EQ(lowest(scores, 2), (std::set{1, 3}));
  EXPECT_THROW(zip_saliency(std::vector<ZipProbe>{{5, last}, {5, last}}, ZipNormalisation::code, scores), BugError);
}

TEST(Zip, ProbesAreTheLastAndAsManyOfTheOthers) {
  for (const int n : {1, 2, 19, 40, 1000}) {
    const std::vector<int> probes = zip_probes(n, 1);
    const int last = std::max(1, n / 20);
    EXPECT_EQ(static_cast<int>(probes.size()), n == 1 ? 1 : 2 * last) << n;
    EXPECT_TRUE(std::ranges::is_sorted(probes));
    EXPECT_EQ(std::ranges::adjacent_find(probes), probes.end());
    for (int i = 0; i < last; ++i) EXPECT_EQ(probes[probes.size() - 1 - i], n - 1 - i);
    EXPECT_EQ(probes, zip_probes(n, 1));
  }
  EXPECT_NE(zip_probes(1000, 1), zip_probes(1000, 2));
}

// The example's rows 0 and 2 are the two tokens of 2 bits; row 1, three times, has 4. Eight channels are the three
// again and again, which changes no minimum or maximum.
TEST(TCsq, WorkedExample) {
  const WindowShape shape{5, 8, 8};
  const ZipLayout layout{shape};
  const float rows[3][3] = {{1, .1f, -3}, {-2, .2f, 6}, {4, -.4f, 9}};
  const int order[] = {0, 1, 1, 2, 1};
  Floats keys(5 * 8), values(5 * 8);
  for (int t = 0; t < 5; ++t)
    for (int c = 0; c < 8; ++c) values[t * 8 + c] = rows[order[t]][c % 3];
  const Coded out = coded(shape, keys, values, {0, 1, 1, 0, 1});
  EXPECT_EQ(not_salient(out.record, 5), (std::set{0, 3}));
  const std::span<const std::byte> record = out.record;
  const float channels[] = {2, .632456f, 3};
  for (int c = 0; c < 8; ++c)
    EXPECT_NEAR(to_float(load_half(record.subspan(layout.channels()), c)), channels[c % 3],
                channels[c % 3] * kHalfStep);
  EXPECT_EQ(to_float(load_half(record.subspan(layout.value_scales()), 0)), .5f);
  EXPECT_NEAR(to_float(load_half(record.subspan(layout.value_scales()), 3)), 1.210819f, 1.210819f * kHalfStep);
  const int codes[2][3] = {{3, 2, 0}, {2, 0, 3}};
  const float back[2][3] = {{1, 0, -3}, {3.578363f, -.4f, 9}};
  for (int i = 0; i < 2; ++i)
    for (int c = 0; c < 8; ++c) {
      const int byte = std::to_integer<int>(record[layout.value_codes(0) + i * 2 + c / 4]);
      EXPECT_EQ(byte >> 2 * (c % 4) & 3, codes[i][c % 3]);
      EXPECT_NEAR(out.values[i * 3 * 8 + c], back[i][c % 3], std::abs(back[i][c % 3]) * 4 * kHalfStep);
    }
  // The others: a fifteenth of the row's width, half a step each way.
  const float step = (2 + 1) / 15.0f;
  for (const int t : {1, 2, 4})
    for (int c = 0; c < 8; ++c)
      EXPECT_NEAR(out.values[t * 8 + c], rows[1][c % 3], channels[c % 3] * step * (.5f + 16 * kHalfStep));
}

TEST(Zip, ExactBytes) {
  // 2 D (.6 x 4 + .4 x 2) / 8 + 4 a token and an eighth; 8 D + 2 D a chunk. baselines.md 6.3.
  for (const int dim : {64, 80, 128})
    for (const int tokens : {40, 80, 200})
      EXPECT_EQ(codec().window_bytes({tokens, dim, dim}),
                static_cast<std::size_t>(tokens * 2 * dim * 16 / 40 + 4 * tokens + tokens / 8 + 10 * dim));
  EXPECT_EQ(codec().window_bytes({100, 64, 64}), 6173u);  // 61.725 a token, and half a byte of class bits
  EXPECT_EQ(codec().head_bytes({100, 64, 64}), 0u);
}

TEST(Zip, ShapesThatAreRefused) {
  for (const WindowShape& shape : {WindowShape{5, 8, 8}, {100, 64, 64}, {255, 512, 96}})
    EXPECT_TRUE(codec().supports(shape));
  for (const WindowShape& shape : {WindowShape{0, 64, 64},
                                   {8, 64, 64},
                                   {32, 64, 64},
                                   {100, 60, 64},
                                   {100, 64, 4},
                                   {-5, 64, 64},
                                   {5, 0, 8},
                                   {5, 520, 8}})
    EXPECT_FALSE(codec().supports(shape)) << shape.tokens << " " << shape.key_dim << " " << shape.value_dim;
}

TEST(Zip, TheLeastSalientGetTwoBits) {
  Rng rng(1);
  const WindowShape shape{100, 64, 64};
  const Floats keys = normals(rng, 6400), values = normals(rng, 6400), scores = normals(rng, 100);
  const Coded out = coded(shape, keys, values, scores);
  const std::set<int> others = not_salient(out.record, 100);
  EXPECT_EQ(others, lowest(scores, 40));
  double error[2] = {0, 0};
  for (int t = 0; t < 100; ++t)
    for (int c = 0; c < 64; ++c)
      for (const float difference :
           {keys[t * 64 + c] - out.keys[t * 64 + c], values[t * 64 + c] - out.values[t * 64 + c]})
        error[others.contains(t)] += static_cast<double>(difference) * difference;
  EXPECT_LT(error[0] / 60, error[1] / 40 / 10);
}

TEST(Zip, WithoutScoresTheShortestValuesGetTwoBits) {
  Rng rng(2);
  const WindowShape shape{10, 8, 8};
  Floats values(80, 1.0f);
  for (const int t : {0, 3, 6, 9})
    for (int c = 0; c < 8; ++c) values[t * 8 + c] = .5f;
  EXPECT_EQ(not_salient(coded(shape, normals(rng, 80), values, {}).record, 10), (std::set{0, 3, 6, 9}));
  // Of equals the first.
  EXPECT_EQ(not_salient(coded(shape, normals(rng, 80), Floats(80, 1.0f), {}).record, 10), (std::set{0, 1, 2, 3}));
}

// Per class half a step of its own minimum and maximum.
TEST(Zip, KeysAreWithinHalfAStepOfTheirClass) {
  Rng rng(3);
  const WindowShape shape{100, 64, 64};
  const ZipLayout layout{shape};
  const Floats keys = normals(rng, 6400);
  const Coded out = coded(shape, keys, normals(rng, 6400), normals(rng, 100));
  const std::set<int> others = not_salient(out.record, 100);
  const std::span<const std::byte> record = out.record;
  for (int t = 0; t < 100; ++t)
    for (int c = 0; c < 64; ++c) {
      const auto scales = record.subspan(layout.key_scales(others.contains(t) ? 0 : 1));
      EXPECT_NEAR(out.keys[t * 64 + c], keys[t * 64 + c], to_float(load_half(scales, c)) * (.5f + 32 * kHalfStep));
    }
}

TEST(Zip, CodesOfDecodedKeysAreTheSame) {
  Rng rng(4);
  const WindowShape shape{100, 64, 64};
  const ZipLayout layout{shape};
  const Floats values = normals(rng, 6400), scores = normals(rng, 100);
  const Coded once = coded(shape, normals(rng, 6400), values, scores);
  const Coded twice = coded(shape, once.keys, values, scores);
  const auto at = static_cast<std::ptrdiff_t>(layout.key_codes(1)),
             end = static_cast<std::ptrdiff_t>(layout.value_codes(1));
  EXPECT_TRUE(std::equal(once.record.begin() + at, once.record.begin() + end, twice.record.begin() + at));
  for (std::size_t i = 0; i < once.keys.size(); ++i) EXPECT_NEAR(twice.keys[i], once.keys[i], 4 * kHalfStep * 4);
}

TEST(Zip, DamagedClassesStayInside) {
  Rng rng(5);
  const WindowShape shape{10, 8, 8};
  for (const std::byte bits : {std::byte{0}, std::byte{0xff}}) {
    Coded out = coded(shape, normals(rng, 80), normals(rng, 80), {});
    out.record[0] = out.record[1] = bits;
    codec().decode(shape, out.record, {}, out.keys, out.values);
    for (const float x : out.keys) EXPECT_TRUE(std::isfinite(x));
  }
}

}  // namespace
}  // namespace qevict
