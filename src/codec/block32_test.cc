// llama.cpp's blocks: the worked examples of baselines.md 6.4, and where every byte lies. Equality with ggml's own
// functions is tested in tests/parity.
#include "codec/block32.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "codec/hadamard.h"
#include "codec/record.h"

namespace qevict {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

Floats block_of(std::initializer_list<float> first) {
  Floats x(first);
  x.resize(kBlockChannels);
  return x;
}

Bytes encoded(BlockType type, const Floats& row) {
  Bytes part(row_bytes(type, static_cast<int>(row.size())));
  encode_blocks(type, row, part);
  return part;
}

Floats decoded(BlockType type, const Bytes& part, std::size_t n) {
  Floats row(n);
  decode_blocks(type, part, row);
  return row;
}

float half_at(const Bytes& part, int index) { return to_float(load_half(part, index)); }
int byte_at(const Bytes& part, int at) { return std::to_integer<int>(part[at]); }

TEST(TQ8, WorkedExample) {
  const Floats x = block_of({1.27f, -.637f, .004f});
  const Bytes part = encoded(BlockType::q8_0, x);
  ASSERT_EQ(part.size(), 34u);
  EXPECT_FLOAT_EQ(half_at(part, 0), .0100021362f);
  const int codes[] = {127, -64, 0, 0};
  for (int j = 0; j < 4; ++j) EXPECT_EQ(static_cast<std::int8_t>(byte_at(part, 2 + j)), codes[j]);
  const Floats back = decoded(BlockType::q8_0, part, 32);
  EXPECT_FLOAT_EQ(back[0], 1.2702713f);
  EXPECT_FLOAT_EQ(back[1], -.6401367f);
  EXPECT_EQ(back[2], 0.0f);
  EXPECT_EQ(back[31], 0.0f);
}

TEST(TQ4, WorkedExampleAndItsNegative) {
  for (const float sign : {1.0f, -1.0f}) {
    const Floats x = block_of({sign * -.8f, sign * .75f, sign * .04f, sign * -.31f});
    const Bytes part = encoded(BlockType::q4_0, x);
    ASSERT_EQ(part.size(), 18u);
    EXPECT_FLOAT_EQ(half_at(part, 0), sign * .0999755859f);
    const int codes[] = {0, 15, 8, 5, 8};
    for (int j = 0; j < 5; ++j) EXPECT_EQ(byte_at(part, 2 + j), codes[j] | 8 << 4) << j;
    const Floats back = decoded(BlockType::q4_0, part, 32);
    const float values[] = {-.799805f, .699829f, 0.0f, -.299927f};
    for (int j = 0; j < 4; ++j) EXPECT_NEAR(back[j], sign * values[j], 1e-6) << j;
  }
}

TEST(TQ4, WithAMinimum) {
  const Floats x = block_of({-.8f, .75f, .04f, -.31f});
  const Bytes part = encoded(BlockType::q4_1, x);
  ASSERT_EQ(part.size(), 20u);
  EXPECT_NEAR(half_at(part, 0), .1033333, 3e-5);
  EXPECT_NEAR(half_at(part, 1), -.8, 3e-4);
  const int codes[] = {0, 15, 8, 5};
  for (int j = 0; j < 4; ++j) EXPECT_EQ(byte_at(part, 4 + j) & 15, codes[j]);
  const Floats back = decoded(BlockType::q4_1, part, 32);
  const float values[] = {-.8f, .75f, .026667f, -.283333f};
  for (int j = 0; j < 4; ++j) EXPECT_NEAR(back[j], values[j], 6e-4) << j;
}

TEST(Block32, ChannelsJAndJPlus16ShareAByte) {
  Rng rng(1);
  for (const BlockType type : {BlockType::q4_0, BlockType::q4_1}) {
    const int codes_at = type == BlockType::q4_0 ? 2 : 4;
    Floats x(kBlockChannels);
    for (float& value : x) value = static_cast<float>(rng.normal());
    const Bytes part = encoded(type, x);
    const Floats before = decoded(type, part, 32);
    for (int j = 0; j < 32; ++j) {
      Bytes changed = part;
      changed[codes_at + j % 16] ^= std::byte{static_cast<unsigned char>(j < 16 ? 1 : 16)};
      const Floats after = decoded(type, changed, 32);
      for (int c = 0; c < 32; ++c) EXPECT_EQ(after[c] != before[c], c == j) << c << " " << j;
    }
  }
}

TEST(Block32, RecordHoldsKeyRowsThenValueRows) {
  Rng rng(2);
  const CodecRow& codec = *find_codec("q4_0");
  for (const int tokens : {1, 3, 8}) {
    const WindowShape shape{tokens, 96, 64};
    ASSERT_TRUE(codec.supports(shape));
    Floats keys(tokens * 96), values(tokens * 64);
    for (float& x : keys) x = static_cast<float>(rng.normal());
    for (float& x : values) x = static_cast<float>(rng.normal());
    Bytes record(codec.window_bytes(shape));
    ASSERT_EQ(record.size(), tokens * (96 + 64) / 32 * 18u);
    ASSERT_TRUE(codec.encode(shape, keys, values, {}, record));
    const Block32Layout layout{shape, BlockType::q4_0};
    const auto row = [](const Floats& x, int t, int dim) { return Floats(&x[t * dim], &x[t * dim] + dim); };
    for (int t = 0; t < tokens; ++t) {
      const Bytes key = encoded(BlockType::q4_0, row(keys, t, 96)),
                  value = encoded(BlockType::q4_0, row(values, t, 64));
      EXPECT_TRUE(std::equal(key.begin(), key.end(), record.begin() + layout.key_row(t)));
      EXPECT_TRUE(std::equal(value.begin(), value.end(), record.begin() + layout.value_row(t)));
    }
  }
}

TEST(Block32, RotatedRecordsAreThoseOfTransformedRows) {
  Rng rng(3);
  EXPECT_EQ(key_rotation_block(64), 64);
  EXPECT_EQ(key_rotation_block(128), 128);
  EXPECT_EQ(key_rotation_block(192), 64);
  EXPECT_EQ(key_rotation_block(256), 256);
  const WindowShape shape{2, 128, 128};
  Floats keys(256), values(256);
  for (float& x : keys) x = static_cast<float>(rng.normal());
  for (float& x : values) x = static_cast<float>(rng.normal());
  const CodecRow &rotated = *find_codec("q8_0r"), &plain = *find_codec("q8_0");
  Bytes record(rotated.window_bytes(shape)), expected(record.size());
  ASSERT_TRUE(rotated.encode(shape, keys, values, {}, record));
  Floats turned_keys = keys, turned_values = values;
  hadamard_blocks(turned_keys, 128);
  hadamard_blocks(turned_values, 64);
  ASSERT_TRUE(plain.encode(shape, turned_keys, turned_values, {}, expected));
  EXPECT_EQ(record, expected);
  Floats key_back(256), value_back(256);
  rotated.decode(shape, record, {}, key_back, value_back);
  for (int i = 0; i < 256; ++i) {
    EXPECT_NEAR(key_back[i], keys[i], 0.06);
    EXPECT_NEAR(value_back[i], values[i], 0.06);
  }
}

// A block's one large channel costs the others their codes; the transform spreads it.
TEST(Block32, ARotationHelpsWhereOneChannelIsLarge) {
  Rng rng(4);
  const WindowShape shape{32, 64, 64};
  Floats keys(32 * 64);
  for (std::size_t i = 0; i < keys.size(); ++i)
    keys[i] = static_cast<float>(rng.normal()) * (i % 64 == 7 ? 30.0f : 1.0f);
  const auto error = [&](const char* name) {
    const CodecRow& codec = *find_codec(name);
    Bytes record(codec.window_bytes(shape));
    EXPECT_TRUE(codec.encode(shape, keys, keys, {}, record));
    Floats back(keys.size()), unused(keys.size());
    codec.decode(shape, record, {}, back, unused);
    double sum = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) sum += (back[i] - keys[i]) * (back[i] - keys[i]);
    return sum;
  };
  EXPECT_LT(error("q4_0r"), 0.7 * error("q4_0"));
  EXPECT_LT(error("q4_1r"), 0.7 * error("q4_1"));
}

TEST(Block32, SupportsWholeBlocksAndAnyWindow) {
  for (const char* name : {"q8_0", "q4_0", "q4_1"}) {
    EXPECT_TRUE(find_codec(name)->supports({1, 32, 96}));
    EXPECT_FALSE(find_codec(name)->supports({8, 80, 96}));
    EXPECT_FALSE(find_codec(name)->supports({8, 96, 80}));
    EXPECT_FALSE(find_codec(name)->supports({0, 64, 64}));
  }
  for (const char* name : {"q8_0r", "q4_0r", "q4_1r"}) {
    EXPECT_TRUE(find_codec(name)->supports({1, 192, 64}));
    EXPECT_FALSE(find_codec(name)->supports({1, 96, 64}));
  }
}

TEST(Block32, ZerosAndTheSmallestNumbersDecodeToZero) {
  for (const BlockType type : {BlockType::q8_0, BlockType::q4_0, BlockType::q4_1})
    for (const float size : {0.0f, std::numeric_limits<float>::denorm_min(), 1e-40f, 1e-38f}) {
      Floats x(kBlockChannels, size);
      x[3] = -size;
      for (const float back : decoded(type, encoded(type, x), 32)) EXPECT_EQ(back, 0.0f) << size;
    }
}

// Beyond f16 the scale saturates: still finite.
TEST(Block32, TheLargestNumbersStayFinite) {
  for (const BlockType type : {BlockType::q8_0, BlockType::q4_0, BlockType::q4_1}) {
    Floats x(kBlockChannels, std::numeric_limits<float>::max());
    x[3] = -x[3];
    for (const float back : decoded(type, encoded(type, x), 32)) EXPECT_TRUE(std::isfinite(back));
  }
}

}  // namespace
}  // namespace qevict
