#include "codec/kxvy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "codec/hadamard.h"
#include "codec/lloyd_max.h"
#include "codec/scale8.h"

namespace qevict {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using Floats = std::vector<float>;
using Codes = std::vector<std::uint8_t>;

const CodecRow& row_of(int key_bits, int value_bits) {
  return *find_codec("k" + std::to_string(key_bits) + "v" + std::to_string(value_bits));
}

// A history of keys (values zero), frozen, then its first 4 or 8 tokens, filled up with repeats, through the codec.
struct KeyWindow {
  WindowShape shape;
  KxvyLayout layout;
  std::vector<std::byte> head, record;
  Floats keys, values;  // decoded

  KeyWindow(const Floats& history, int dim, int bits) : shape{8, dim, 2}, layout{shape, bits, 2} {
    const CodecRow& row = row_of(bits, 2);
    const int n = static_cast<int>(history.size()) / dim;
    head.resize(row.head_bytes(shape));
    row.estimate_head(shape, history, Floats(n * 2), head);
    Floats window(8 * dim);
    for (int i = 0; i < 8 * dim; ++i) window[i] = history[i % history.size()];
    record.resize(row.window_bytes(shape));
    EXPECT_TRUE(row.encode(shape, window, Floats(16), head, record));
    keys.resize(8 * dim);
    values.resize(16);
    row.decode(shape, record, head, keys, values);
  }
  Half mean(int d) const { return load_half(std::span(head).subspan(layout.key_means()), d); }
  Half deviation(int d) const { return load_half(std::span(head).subspan(layout.key_deviations()), d); }
  int exponent(int t) const { return std::to_integer<int>(record[layout.key_scales(8) + t]); }
  Floats key(int t) const { return {keys.begin() + t * shape.key_dim, keys.begin() + (t + 1) * shape.key_dim}; }
  std::vector<int> codes(int t) const {
    Codes all(8 * shape.key_dim);
    unpack_keys(layout.keys(8), std::span(record).first(layout.keys(8).bytes()), all);
    return {all.begin() + t * shape.key_dim, all.begin() + (t + 1) * shape.key_dim};
  }
};

void expect_near(const Floats& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << i;
}

// What the example calls y: of the stored numbers.
Floats normalised(const KeyWindow& w, std::span<const float> key) {
  Floats y(key.size());
  for (std::size_t d = 0; d < key.size(); ++d)
    if (w.deviation(d).bits != 0) y[d] = (key[d] - to_float(w.mean(d))) / to_float(w.deviation(d));
  return y;
}

double rms_of(const Floats& y, int n) {
  double squares = 0;
  for (const float v : y) squares += v * v;
  return std::sqrt(squares / n);
}

const Floats kMusigKeys = {
    0.875,  -1.25,  10.875, 0.125,  0.875, -0.25,  -1.375, -3.875,  //
    0.125,  -0.375, 11.75,  0.125,  3,     -0.125, 0.875,  -5,      //
    0.5,    -0.75,  11.125, -2.125, 3.25,  0,      -1.125, -7.75,   //
    -0.625, -1.5,   10,     2.875,  2.5,   0,      0.125,  -1.625,  //
    1.875,  -0.125, 12.25,  1.625,  2.5,   -0.25,  -1.125, -5.875,  //
    -0.75,  -1.125, 11.125, -2.5,   3.375, -0.25,  2,      -2.5,
};

TEST(QMusig, MeansAndDeviationsAreThePopulations) {
  const KeyWindow w(kMusigKeys, 8, 2);
  const int means[] = {0x3555, 0xBAD5, 0x4998, 0x2555, 0x412B, 0xB0AB, 0xAEAB, 0xC470};
  const int deviations[] = {0x3B2E, 0x37C8, 0x399F, 0x3F9B, 0x3AAD, 0x2F2E, 0x3CF0, 0x401C};
  for (int d = 0; d < 8; ++d) {
    EXPECT_EQ(w.mean(d).bits, means[d]) << d;
    EXPECT_EQ(w.deviation(d).bits, deviations[d]) << d;
  }
  expect_near(normalised(w, std::span(kMusigKeys).first(8)),
              {0.60365, -0.81426, -0.44475, 0.05479, -2.04798, -0.92818, -1.02952, 0.27376}, 1e-5);
}

struct MusigToken {
  double rms;
  std::vector<int> codes;
  double a;
  int e;
  double a_stored;
};

void expect_tokens(const KeyWindow& w, const Floats& history, int n_active, const std::vector<MusigToken>& tokens) {
  const int dim = w.shape.key_dim;
  const auto levels = lloyd_max_levels(w.layout.key_bits);
  for (int t = 0; t < static_cast<int>(tokens.size()); ++t) {
    SCOPED_TRACE(t);
    const MusigToken& want = tokens[t];
    const Floats y = normalised(w, std::span(history).subspan(t * dim, dim));
    EXPECT_NEAR(rms_of(y, n_active), want.rms, 1e-6);
    EXPECT_THAT(w.codes(t), ElementsAreArray(want.codes));
    double y_level = 0, level_level = 0;
    for (int d = 0; d < dim; ++d) {
      if (w.deviation(d).bits == 0) continue;
      y_level += y[d] * levels[want.codes[d]];
      level_level += levels[want.codes[d]] * levels[want.codes[d]];
    }
    EXPECT_NEAR(y_level / level_level, want.a, 1e-6);
    EXPECT_EQ(w.exponent(t), want.e);
    EXPECT_NEAR(scale8_value(static_cast<std::uint8_t>(w.exponent(t))), want.a_stored, 1e-6);
  }
}

// Mean squared error over the history, and the same in units of the deviations.
std::pair<double, double> errors_of(const KeyWindow& w, const Floats& history) {
  double squares = 0, scaled = 0;
  for (std::size_t i = 0; i < history.size(); ++i) {
    const double error = w.keys[i] - history[i], deviation = to_float(w.deviation(i % w.shape.key_dim));
    squares += error * error;
    scaled += error * error / (deviation * deviation);
  }
  return {squares / history.size(), scaled / history.size()};
}

TEST(QMusig, TwoBits) {
  const KeyWindow w(kMusigKeys, 8, 2);
  expect_tokens(w, kMusigKeys, 8,
                {{0.962991, {2, 1, 1, 2, 0, 1, 0, 2}, 1.046477, 177, 1.059463},
                 {0.576110, {1, 3, 3, 2, 2, 2, 3, 1}, 0.566753, 166, 0.561231},
                 {0.933588, {2, 2, 1, 0, 2, 3, 1, 0}, 0.897483, 174, 0.890899},
                 {1.205366, {1, 0, 0, 3, 1, 3, 2, 3}, 0.954424, 175, 0.943874},
                 {1.131462, {3, 3, 3, 2, 1, 1, 1, 1}, 1.103562, 178, 1.122462},
                 {1.065843, {0, 1, 1, 0, 2, 1, 3, 2}, 1.012995, 176, 1.000000}});
  expect_near(w.key(0), {0.76379, -1.08731, 10.85043, 0.93296, 1.24900, -0.19969, -2.07893, -3.45182}, 1e-5);
  expect_near(w.key(5), {-1.02191, -1.07421, 10.86935, -2.85024, 2.96183, -0.19667, 1.75972, -3.50714}, 1e-5);
  const auto [error, scaled] = errors_of(w, kMusigKeys);
  EXPECT_NEAR(error, 0.116451, 1e-6);
  EXPECT_NEAR(scaled, 0.087676, 1e-6);
}

TEST(QMusig, ThreeBits) {
  const KeyWindow w(kMusigKeys, 8, 3);
  expect_tokens(w, kMusigKeys, 8,
                {{0.962991, {5, 2, 3, 4, 0, 2, 1, 4}, 0.930612, 175, 0.943874},
                 {0.576110, {3, 6, 6, 4, 5, 4, 6, 3}, 0.646102, 168, 0.629961},
                 {0.933588, {4, 4, 3, 1, 5, 6, 2, 1}, 1.005522, 176, 1.000000},
                 {1.205366, {2, 1, 1, 6, 3, 6, 4, 6}, 1.083875, 177, 1.059463},
                 {1.131462, {6, 6, 6, 5, 3, 2, 2, 2}, 1.142810, 178, 1.122462},
                 {1.065843, {1, 2, 3, 1, 5, 2, 6, 5}, 1.064934, 177, 1.059463}});
  expect_near(w.key(0), {0.97365, -1.20103, 11.02495, 0.46070, 0.88899, -0.22592, -1.67007, -3.96216}, 1e-5);
  expect_near(w.key(5), {-0.94466, -1.24353, 11.00504, -2.68656, 3.25236, -0.23573, 1.65346, -2.79179}, 1e-5);
  const auto [error, scaled] = errors_of(w, kMusigKeys);
  EXPECT_NEAR(error, 0.030770, 1e-6);
  EXPECT_NEAR(scaled, 0.020989, 1e-6);
}

TEST(QMusig0, AConstantChannelTakesPartInNothing) {
  const Floats keys = {1, 0, 0.5, -1.5, 0.5, -1.25, 0.5, -0.25, 1.75, 1.75, 0.5, -0.25};
  const KeyWindow w(keys, 4, 2);
  const double means[] = {1.0830078125, 0.1666259765625, 0.5, -0.66650390625};
  const double deviations[] = {0.513671875, 1.23046875, 0, 0.58935546875};
  for (int d = 0; d < 4; ++d) {
    EXPECT_EQ(to_float(w.mean(d)), means[d]);
    EXPECT_EQ(to_float(w.deviation(d)), deviations[d]);
  }
  expect_tokens(w, keys, 3,
                {{0.825541, {1, 1, 2, 0}, 0.843819, 173, scale8_value(173)},
                 {1.018674, {0, 0, 2, 2}, 0.791624, 172, scale8_value(172)},
                 {1.131571, {3, 3, 2, 2}, 0.886375, 174, scale8_value(174)}});
  expect_near(w.key(0), {0.88742, -0.30188, 0.50000, -1.41484}, 1e-5);
  for (int t = 0; t < 3; ++t) EXPECT_EQ(w.key(t)[2], 0.5f);
}

TEST(QHad8, RotatedCodesOfAValueRow) {
  const Floats x = {-1.25, -1, 2.25, 2.5, 1.5, 1.25, 2, 0.25}, mean = {0.25, -0.25, 0.5, 0, 0, 0.25, -0.5, -0.25};
  const Floats signs = {1, -1, -1, 1, 1, 1, -1, 1};
  Floats z(8);
  for (int d = 0; d < 8; ++d) z[d] = x[d] - mean[d];
  expect_near(z, {-1.5, -0.75, 1.75, 2.5, 1.5, 1, 2.5, 0.5}, 0);
  rotate_values(z, signs);
  expect_near(z, {0.176777, -3.181981, 1.060660, 1.944544, -0.176777, -1.414214, -2.121320, -0.530330}, 1e-6);
  EXPECT_NEAR(rms_of(z, 8), 1.653595, 1e-6);
  EXPECT_NEAR(rms_of(z, 1) * rms_of(z, 1), 21.875, 1e-5);

  struct Case {
    int bits;
    std::vector<int> codes;
    double a;
    int e;
    double a_stored;
    std::vector<double> back;
    double error;
  };
  const Case cases[] = {
      {2,
       {2, 0, 2, 3, 1, 1, 0, 1},
       1.584793,
       184,
       1.587401,
       {-0.85158, -0.16492, 1.60158, 2.28825, 2.11809, 1.35158, 1.78825, 0.85158},
       0.096936},
      {3,
       {4, 0, 5, 6, 3, 2, 1, 3},
       1.505141,
       183,
       1.498307,
       {-1.01982, -0.89686, 2.31110, 2.43406, 1.47440, 1.51982, 1.93406, 0.47854},
       0.009222},
  };
  for (const Case& c : cases) {
    Codes codes(8);
    const std::uint8_t e = encode_token(z, {}, c.bits, ScaleRule::least_squares, codes);
    EXPECT_THAT(std::vector<int>(codes.begin(), codes.end()), ElementsAreArray(c.codes));
    EXPECT_EQ(e, c.e);
    const auto levels = lloyd_max_levels(c.bits);
    double z_level = 0, level_level = 0;
    Floats back(8);
    for (int d = 0; d < 8; ++d) {
      z_level += z[d] * levels[codes[d]];
      level_level += levels[codes[d]] * levels[codes[d]];
      back[d] = scale8_value(e) * levels[codes[d]];
    }
    EXPECT_NEAR(z_level / level_level, c.a, 1e-6);
    EXPECT_NEAR(scale8_value(e), c.a_stored, 1e-6);
    unrotate_values(back, signs);
    double error = 0;
    for (int d = 0; d < 8; ++d) {
      back[d] += mean[d];
      error += (back[d] - x[d]) * (back[d] - x[d]);
    }
    expect_near(back, c.back, 1e-5);
    EXPECT_NEAR(error / 21.875, c.error, 1e-6);
  }
}

// Of rows with Gaussian channels. The least squares of 2 bits shrink every row by 12 %; midway halves that for a little
// more error.
TEST(Kxvy, MidwayHalvesWhatLeastSquaresShrink) {
  Rng rng(7);
  const auto levels = lloyd_max_levels(2);
  const auto along_and_error = [&](ScaleRule rule) {
    double along = 0, error = 0, length = 0;
    for (int i = 0; i < 400; ++i) {
      Floats row(64);
      for (float& x : row) x = static_cast<float>(rng.normal());
      Codes codes(64);
      const float scale = scale8_value(encode_token(row, {}, 2, rule, codes));
      for (int d = 0; d < 64; ++d) {
        const double back = scale * levels[codes[d]];
        along += row[d] * back;
        error += (row[d] - back) * (row[d] - back);
        length += row[d] * row[d];
      }
    }
    return std::pair(along / length, error / length);
  };
  const auto [shrunk, least] = along_and_error(ScaleRule::least_squares);
  const auto [halfway, more] = along_and_error(ScaleRule::midway);
  EXPECT_NEAR(shrunk, 0.883, 0.005);
  EXPECT_NEAR(halfway, 0.942, 0.005);
  EXPECT_NEAR(least, 0.117, 0.004);
  EXPECT_NEAR(more, 0.121, 0.004);
}

// The same row through a record, with the product's signs: values come back as mean + unrotated levels.
TEST(Kxvy, ValuesComeBackFromTheRecord) {
  const Floats x = {-1.25, -1, 2.25, 2.5, 1.5, 1.25, 2, 0.25};
  const WindowShape shape{4, 2, 8};
  Floats values;
  for (int t = 0; t < 4; ++t)
    for (const float v : x) values.push_back(v + static_cast<float>(t % 2));
  for (const int bits : {2, 3, 4}) {
    const CodecRow& row = row_of(2, bits);
    const KxvyLayout layout{shape, 2, bits};
    std::vector<std::byte> head(row.head_bytes(shape)), record(row.window_bytes(shape));
    row.estimate_head(shape, Floats(8), values, head);
    ASSERT_TRUE(row.encode(shape, Floats(8), values, head, record));
    Floats keys(8), decoded(32);
    row.decode(shape, record, head, keys, decoded);
    Floats z(8);
    for (int d = 0; d < 8; ++d) z[d] = x[d] - to_float(load_half(std::span(head).subspan(layout.value_means()), d));
    rotate_values(z, rotation_signs(8));
    Codes codes(8), all(32);
    const float scale = scale8_value(encode_token(z, {}, bits, ScaleRule::midway, codes));
    unpack_values(layout.values(4), std::span(record).subspan(layout.value_codes(4), layout.values(4).bytes()), all);
    EXPECT_EQ(Codes(all.begin(), all.begin() + 8), codes);
    for (int d = 0; d < 8; ++d) z[d] = scale * lloyd_max_levels(bits)[codes[d]];
    unrotate_values(z, rotation_signs(8));
    for (int d = 0; d < 8; ++d)
      EXPECT_NEAR(decoded[d], z[d] + to_float(load_half(std::span(head).subspan(layout.value_means()), d)), 1e-6);
  }
}

TEST(Kxvy, TokensEqualToTheMeansHaveScaleZero) {
  const WindowShape shape{4, 4, 4};
  const CodecRow& row = row_of(3, 4);
  const KxvyLayout layout{shape, 3, 4};
  std::vector<std::byte> head(row.head_bytes(shape)), record(row.window_bytes(shape));
  const Floats history = {1, 1, 1, 1, 3, 3, 3, 3}, middle(16, 2.0f);
  row.estimate_head(shape, history, history, head);
  const Floats value_means(16, to_float(load_half(std::span(head).subspan(layout.value_means()), 0)));
  EXPECT_NEAR(value_means[0], 2.0 * 2 / (2 + 32), 1e-3);
  ASSERT_TRUE(row.encode(shape, middle, value_means, head, record));
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(record[layout.key_scales(4) + t], std::byte{0});
    EXPECT_EQ(record[layout.value_scales(4) + t], std::byte{0});
  }
  Codes codes(16);
  unpack_keys(layout.keys(4), std::span(record).first(layout.keys(4).bytes()), codes);
  EXPECT_THAT(codes, testing::Each(4));
  unpack_values(layout.values(4), std::span(record).subspan(layout.value_codes(4), layout.values(4).bytes()), codes);
  EXPECT_THAT(codes, testing::Each(8));
  Floats keys(16), values(16);
  row.decode(shape, record, head, keys, values);
  EXPECT_EQ(keys, middle);
  EXPECT_EQ(values, value_means);
}

TEST(Kxvy, RefusesHeadParametersThatAreNotFinite) {
  const WindowShape shape{4, 4, 4};
  const CodecRow& row = row_of(3, 2);
  std::vector<std::byte> head(row.head_bytes(shape)), record(row.window_bytes(shape));
  EXPECT_TRUE(row.encode(shape, Floats(16), Floats(16), head, record));
  store_half(head, 5, Half{0x7e00});
  EXPECT_FALSE(row.encode(shape, Floats(16), Floats(16), head, record));
}

TEST(Kxvy, RefusesShapesItDoesNotKnow) {
  const CodecRow& row = row_of(3, 2);
  std::vector<std::byte> head(24), record(1024);
  EXPECT_THROW(row.encode({6, 4, 4}, Floats(24), Floats(24), head, record), BugError);
  EXPECT_THROW(row.encode({8, 4, 4}, Floats(32), Floats(32), head, record), BugError);  // record too long
  EXPECT_THROW(row.estimate_head({8, 4, 4}, {}, {}, head), BugError);
}

}  // namespace
}  // namespace qevict
