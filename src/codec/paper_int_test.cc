#include "codec/paper_int.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace qevict {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;
using Floats = std::vector<float>;
using Codes = std::vector<std::uint8_t>;

// One window through the codec, and its parts read back.
struct Window {
  PaperIntLayout layout;
  std::vector<std::byte> record;
  Floats keys, values;  // decoded
  Codes key_codes;      // [tokens][key_dim]
  Codes value_codes;    // [tokens][value_dim]

  Window(WindowShape shape, int bits, const Floats& k, const Floats& v)
      : layout{shape, bits},
        record(layout.bytes()),
        keys(k.size()),
        values(v.size()),
        key_codes(k.size()),
        value_codes(v.size()) {
    const CodecRow& row = *find_codec(bits == 2 ? "int2" : "int4");
    EXPECT_EQ(row.window_bytes(shape), record.size());
    EXPECT_TRUE(row.encode(shape, k, v, {}, record));
    row.decode(shape, record, {}, keys, values);
    const std::span<const std::byte> all = record;
    unpack_keys(layout.keys(), all.subspan(layout.key_codes(), layout.keys().bytes()), key_codes);
    unpack_values(layout.values(), all.subspan(layout.value_codes(), layout.values().bytes()), value_codes);
  }
  Half key_scale(int d) const { return load_half(std::span(record).subspan(layout.key_scales()), layout.key_slot(d)); }
  Half key_zero(int d) const { return load_half(std::span(record).subspan(layout.key_zeros()), layout.key_slot(d)); }
  Half value_scale(int t) const { return load_half(std::span(record).subspan(layout.value_scales()), t); }
  Half value_zero(int t) const { return load_half(std::span(record).subspan(layout.value_zeros()), t); }
  std::vector<int> codes_of_channel(int d) const {
    std::vector<int> codes;
    for (int t = 0; t < layout.shape.tokens; ++t) codes.push_back(key_codes[t * layout.shape.key_dim + d]);
    return codes;
  }
  Floats channel(int d) const {
    Floats column;
    for (int t = 0; t < layout.shape.tokens; ++t) column.push_back(keys[t * layout.shape.key_dim + d]);
    return column;
  }
  std::vector<int> codes_of_token(int t) const {
    const int dim = layout.shape.value_dim;
    return {value_codes.begin() + t * dim, value_codes.begin() + (t + 1) * dim};
  }
  Floats value_row(int t) const {
    const int dim = layout.shape.value_dim;
    return {values.begin() + t * dim, values.begin() + (t + 1) * dim};
  }
};

// The layout of the examples' `bytes` column: code t of one channel at bits bits*(t%k) of byte t/k.
std::vector<int> plain_bytes(const std::vector<int>& codes, int bits) {
  std::vector<int> bytes(codes.size() * bits / 8);
  for (std::size_t t = 0; t < codes.size(); ++t) bytes[t * bits / 8] |= codes[t] << t * bits % 8;
  return bytes;
}

Floats random_floats(Rng& rng, std::size_t n, float spread = 1.0f) {
  Floats values(n);
  for (float& value : values) value = spread * static_cast<float>(rng.normal());
  return values;
}

constexpr float kExampleKeys[4][8] = {
    {-1, 0.25, 0.625, 2, -0.375, 1.125, 0.875, 1.5625},
    {0.75, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75},
    {12, 12.25, 11.5, 12.625, 11.875, 12.125, 12.5, 11.75},
    {-0.3125, 0.125, 0.6875, 0.0625, -0.125, 0.4375, 0.5625, 0.25},
};

Floats example_keys() {
  Floats keys(8 * 4);
  for (int d = 0; d < 4; ++d)
    for (int t = 0; t < 8; ++t) keys[t * 4 + d] = kExampleKeys[d][t];
  return keys;
}

TEST(QInt2K, CodesScalesZerosAndPlainBytes) {
  const Window w({8, 4, 4}, 2, example_keys(), Floats(32));
  EXPECT_EQ(w.key_scale(0).bits, 0x3C00);
  EXPECT_EQ(w.key_zero(0).bits, 0xBC00);
  EXPECT_THAT(w.codes_of_channel(0), ElementsAre(0, 1, 2, 3, 1, 2, 2, 3));
  EXPECT_THAT(w.channel(0), ElementsAre(-1, 0, 1, 2, 0, 1, 1, 2));
  EXPECT_THAT(plain_bytes(w.codes_of_channel(0), 2), ElementsAre(0xE4, 0xE9));

  EXPECT_EQ(w.key_scale(1).bits, 0x0000);
  EXPECT_EQ(w.key_zero(1).bits, 0x3A00);
  EXPECT_THAT(w.codes_of_channel(1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(w.channel(1), Each(0.75f));
  EXPECT_THAT(plain_bytes(w.codes_of_channel(1), 2), ElementsAre(0x00, 0x00));

  EXPECT_EQ(w.key_scale(2).bits, 0x3600);
  EXPECT_EQ(w.key_zero(2).bits, 0x49C0);
  EXPECT_THAT(w.codes_of_channel(2), ElementsAre(1, 2, 0, 3, 1, 2, 3, 1));
  EXPECT_THAT(w.channel(2), ElementsAre(11.875f, 12.25f, 11.5f, 12.625f, 11.875f, 12.25f, 12.625f, 11.875f));
  EXPECT_THAT(plain_bytes(w.codes_of_channel(2), 2), ElementsAre(0xC9, 0x79));

  EXPECT_EQ(w.key_scale(3).bits, 0x3555);
  EXPECT_EQ(w.key_zero(3).bits, 0xB500);
  EXPECT_THAT(w.codes_of_channel(3), ElementsAre(0, 1, 3, 1, 1, 2, 3, 2));
  EXPECT_THAT(w.channel(3), ElementsAre(-0.3125f, 0.020751953125f, 0.687255859375f, 0.020751953125f, 0.020751953125f,
                                        0.35400390625f, 0.687255859375f, 0.35400390625f));
  EXPECT_THAT(plain_bytes(w.codes_of_channel(3), 2), ElementsAre(0x74, 0xB9));
}

TEST(QInt2K, Channel3At4Bits) {
  const Window w({8, 4, 4}, 4, example_keys(), Floats(32));
  EXPECT_EQ(w.key_scale(3).bits, 0x2C44);
  EXPECT_EQ(w.key_zero(3).bits, 0xB500);
  EXPECT_THAT(w.codes_of_channel(3), ElementsAre(0, 7, 15, 6, 3, 11, 13, 8));
  EXPECT_THAT(w.channel(3), ElementsAre(-0.3125f, 0.154052734375f, 0.687255859375f, 0.08740234375f, -0.112548828125f,
                                        0.420654296875f, 0.553955078125f, 0.220703125f));
}

TEST(QInt2V, OneScalePerToken) {
  Floats values(8 * 4);
  const float row[] = {0.8125f, -1.25f, 0.125f, 2.0f};
  std::copy(std::begin(row), std::end(row), values.begin() + 4);
  const Window w({8, 4, 4}, 2, Floats(32), values);
  EXPECT_EQ(w.value_scale(1).bits, 0x3C55);
  EXPECT_EQ(w.value_zero(1).bits, 0xBD00);
  EXPECT_THAT(w.codes_of_token(1), ElementsAre(2, 0, 1, 3));
  EXPECT_THAT(w.value_row(1), ElementsAre(0.916015625f, -1.25f, -0.1669921875f, 1.9990234375f));
  EXPECT_THAT(w.value_row(0), Each(0.0f));
}

TEST(QInt2X, Extremes) {
  constexpr float kUnit = 0x1p-24f;  // the smallest f16
  struct Case {
    std::array<float, 4> x;
    int scale, zero;
    std::array<int, 4> codes;
    std::array<float, 4> decoded;
  };
  const Case cases[] = {
      {{-65504, 65504, -20000, 30000}, 0x7955, 0xFBFF, {0, 3, 1, 2}, {-65504, 65536, -21824, 21856}},
      {{65504, 65504, 65504, 65504}, 0x0000, 0x7BFF, {0, 0, 0, 0}, {65504, 65504, 65504, 65504}},
      {{0, 3 * kUnit, kUnit, 2 * kUnit}, 0x0001, 0x0000, {0, 3, 1, 2}, {0, 3 * kUnit, kUnit, 2 * kUnit}},
      {{0, kUnit, 0, kUnit}, 0x0000, 0x0000, {0, 0, 0, 0}, {0, 0, 0, 0}},
      {{0, 4 * kUnit, kUnit, kUnit}, 0x0001, 0x0000, {0, 3, 1, 1}, {0, 3 * kUnit, kUnit, kUnit}},
      {{0.1f, 0.1f, 0.1f, 0.1f},
       0x0000,
       0x2E66,
       {0, 0, 0, 0},
       {0.0999755859375f, 0.0999755859375f, 0.0999755859375f, 0.0999755859375f}},
      {{0.99609375f, 7, 6, 3}, 0x4001, 0x3BF8, {0, 3, 2, 1}, {0.99609375f, 7.001953125f, 5, 2.998046875f}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c.x));
    // The same four numbers as a key channel of four tokens and as one token's values.
    Floats keys(4 * 2);
    for (int t = 0; t < 4; ++t) keys[t * 2 + 1] = c.x[t];
    Floats values(4 * 4);
    std::copy(c.x.begin(), c.x.end(), values.begin() + 8);
    const Window w({4, 2, 4}, 2, keys, values);
    EXPECT_EQ(w.key_scale(1).bits, c.scale);
    EXPECT_EQ(w.key_zero(1).bits, c.zero);
    EXPECT_THAT(w.codes_of_channel(1), ElementsAreArray(c.codes));
    EXPECT_THAT(w.channel(1), ElementsAreArray(c.decoded));
    EXPECT_EQ(w.value_scale(2).bits, c.scale);
    EXPECT_EQ(w.value_zero(2).bits, c.zero);
    EXPECT_THAT(w.codes_of_token(2), ElementsAreArray(c.codes));
    EXPECT_THAT(w.value_row(2), ElementsAreArray(c.decoded));
  }
}

TEST(PaperInt, KeysBeyondTheRangeOfHalvesStayFinite) {  // unrotated keys reach 65504 * sqrt(2)
  Floats keys(8 * 4, 92000.0f);
  for (int t = 0; t < 8; t += 2) keys[t * 4] = -92000.0f;
  const Window w({8, 4, 4}, 2, keys, Floats(32));
  for (const float key : w.keys) EXPECT_TRUE(std::isfinite(key));
  EXPECT_NEAR(w.channel(0)[1], 92000.0f, 27000.0f);
}

// Every element lies within half a step of its group, and of a little more where f16 rounds zero and scale.
TEST(PaperInt, ErrorIsBoundedByTheStoredScale) {
  Rng rng(1);
  for (const int bits : {2, 4})
    for (const WindowShape shape : {WindowShape{8, 64, 64}, {16, 80, 96}, {32, 128, 64}, {4, 8, 4}, {12, 6, 18}}) {
      const Floats keys = random_floats(rng, shape.tokens * shape.key_dim, 3);
      const Floats values = random_floats(rng, shape.tokens * shape.value_dim, 0.3f);
      const Window w(shape, bits, keys, values);
      const float steps = static_cast<float>((1 << bits) - 1);
      for (int t = 0; t < shape.tokens; ++t) {
        for (int d = 0; d < shape.key_dim; ++d) {
          const float scale = to_float(w.key_scale(d)), zero = to_float(w.key_zero(d));
          const float rounding = 0x1p-11f * (std::abs(zero) + steps * scale);
          EXPECT_LE(std::abs(w.keys[t * shape.key_dim + d] - keys[t * shape.key_dim + d]), 0.5f * scale + rounding);
        }
        const float scale = to_float(w.value_scale(t)), zero = to_float(w.value_zero(t));
        const float rounding = 0x1p-11f * (std::abs(zero) + steps * scale);
        for (int d = 0; d < shape.value_dim; ++d)
          EXPECT_LE(std::abs(w.values[t * shape.value_dim + d] - values[t * shape.value_dim + d]),
                    0.5f * scale + rounding);
      }
    }
}

// True where every group uses its first and last code, as min and max do unless f16 rounding of zero exceeds a step.
TEST(PaperInt, EncodingTheDecodedWindowGivesTheSameRecord) {
  Rng rng(2);
  for (const int bits : {2, 4}) {
    const WindowShape shape{8, 64, 80};
    const Window first(shape, bits, random_floats(rng, 8 * 64), random_floats(rng, 8 * 80));
    const Window second(shape, bits, first.keys, first.values);
    EXPECT_EQ(first.record, second.record);
    EXPECT_EQ(first.keys, second.keys);
  }
}

TEST(PaperInt, RefusesNonFiniteInput) {
  const CodecRow& row = *find_codec("int2");
  const WindowShape shape{8, 4, 4};
  std::vector<std::byte> record(row.window_bytes(shape));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
    for (int at = 0; at < 32; ++at) {
      Floats broken(32, 1.0f);
      broken[at] = bad;
      EXPECT_FALSE(row.encode(shape, broken, Floats(32), {}, record));
      EXPECT_FALSE(row.encode(shape, Floats(32), broken, {}, record));
    }
}

TEST(PaperInt, RefusesShapesItDoesNotKnow) {
  const CodecRow& row = *find_codec("int2");
  std::vector<std::byte> record(1024);
  EXPECT_THROW(row.encode({6, 4, 4}, Floats(24), Floats(24), {}, record), BugError);
  EXPECT_THROW(row.encode({8, 4, 4}, Floats(32), Floats(32), {}, record), BugError);  // record too long
}

// As the kernels read it: key rows of 64 bytes, lane (t, place) of 16 bits; value rows of 64 bytes, byte t % 4 of lane
// c.
TEST(PaperInt, RecordIsInRowsOfRegisters) {
  Rng rng(3);
  const Window w({8, 64, 64}, 2, random_floats(rng, 8 * 64), random_floats(rng, 8 * 64));
  for (int t = 0; t < 8; ++t)
    for (int d = 0; d < 64; ++d) {
      const int key_register = d / 8 * 2 + d % 2, place = d % 8 / 2;
      std::uint16_t lane;
      std::memcpy(&lane, &w.record[key_register / 8 * 64 + t * 8 + place * 2], 2);
      EXPECT_EQ(lane >> 2 * (key_register % 8) & 3, w.key_codes[t * 64 + d]);
      const int index = d / 16 * 2 + t / 4;
      const int byte = std::to_integer<int>(w.record[384 + index / 4 * 64 + d % 16 * 4 + t % 4]);
      EXPECT_EQ(byte >> 2 * (index % 4) & 3, w.value_codes[t * 64 + d]);
    }
}

}  // namespace
}  // namespace qevict
