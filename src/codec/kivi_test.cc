// KIVI: the worked examples of baselines.md 6.1, and where every bit lies.
#include "codec/kivi.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "codec/record.h"

namespace qevict {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

struct Coded {
  Bytes record;
  Floats keys, values;
};

Coded coded(const CodecRow& codec, WindowShape shape, const Floats& keys, const Floats& values) {
  Coded out{Bytes(codec.window_bytes(shape)), Floats(keys.size()), Floats(values.size())};
  EXPECT_TRUE(codec.encode(shape, keys, values, {}, out.record));
  codec.decode(shape, out.record, {}, out.keys, out.values);
  return out;
}

Floats normals(Rng& rng, std::size_t n) {
  Floats x(n);
  for (float& value : x) value = static_cast<float>(rng.normal());
  return x;
}

struct Example {
  float x[4];
  int codes[4];
  float back[4], zero, scale;
};
const Example kExamples[] = {{{-1, .2f, .6f, 2}, {0, 1, 2, 3}, {-1, 0, 1, 2}, -1, 1},
                             {{.3f, -.5f, 1, .1f}, {2, 0, 3, 1}, {.5f, -.5f, 1, 0}, -.5f, .5f}};

// The example's four numbers, eight times over, along the tokens of a channel and along the channels of a token.
TEST(TKivi, WorkedExamplesOfAGroup) {
  const WindowShape shape{32, 32, 32};
  const KiviLayout layout{shape, 2};
  for (const Example& example : kExamples) {
    Floats keys(32 * 32), values(32 * 32);
    for (int t = 0; t < 32; ++t)
      for (int c = 0; c < 32; ++c) {
        keys[t * 32 + c] = example.x[t % 4];
        values[t * 32 + c] = example.x[c % 4];
      }
    const Coded out = coded(*find_codec("kivi-2"), shape, keys, values);
    for (int t = 0; t < 32; ++t)
      for (int c = 0; c < 32; ++c) {
        EXPECT_EQ(out.keys[t * 32 + c], example.back[t % 4]);
        EXPECT_EQ(out.values[t * 32 + c], example.back[c % 4]);
        const int key = std::to_integer<int>(out.record[layout.key_codes() + t / 4 * 32 + c]);
        EXPECT_EQ(key >> 2 * (t % 4) & 3, example.codes[t % 4]);
        const int value = std::to_integer<int>(out.record[layout.value_codes() + t * 8 + c % 8]);
        EXPECT_EQ(value >> 2 * (c / 8) & 3, example.codes[c % 4]);
      }
    const std::span<const std::byte> record = out.record;
    EXPECT_EQ(to_float(load_half(record.subspan(layout.key_scales()), 31)), example.scale);
    EXPECT_EQ(to_float(load_half(record.subspan(layout.key_zeros()), 31)), example.zero);
    EXPECT_EQ(to_float(load_half(record.subspan(layout.value_scales()), 31)), example.scale);
    EXPECT_EQ(to_float(load_half(record.subspan(layout.value_zeros()), 31)), example.zero);
  }
}

// The sums of T-KIVI, D = 64: R = 128 tokens wait in f16; keys leave 128 at a time, values one at a time in the
// paper's program. Bytes of what is quantized are the codec's.
TEST(TKivi, BytesOfABookkeeping) {
  const auto key_bytes = [](int tokens) {
    return find_codec("kivi-2")->window_bytes({tokens, 128, 64}) - find_codec("kivi-2")->window_bytes({tokens, 64, 64});
  };
  EXPECT_EQ(key_bytes(256), 256u * (64 / 4 + 4 * 64 / 32));
  // Values of 172 tokens are no multiple of 32 in one record, but each token takes as much.
  const std::size_t value_bytes = (find_codec("kivi-2")->window_bytes({32, 64, 64}) - key_bytes(32)) / 32;
  EXPECT_EQ(key_bytes(256) + 172 * value_bytes + 2u * 64 * (44 + 128), 32288u);
  EXPECT_EQ(key_bytes(384) + 256 * value_bytes + 2u * 64 * (0 + 128), 31744u);
}

TEST(Kivi, BytesPerTokenAreThreeQuartersAndFiveQuartersOfD) {
  for (const int dim : {64, 96, 128, 256})
    for (const int tokens : {32, 64, 128}) {
      EXPECT_EQ(find_codec("kivi-2")->window_bytes({tokens, dim, dim}), static_cast<std::size_t>(tokens * dim * 3 / 4));
      EXPECT_EQ(find_codec("kivi-4")->window_bytes({tokens, dim, dim}), static_cast<std::size_t>(tokens * dim * 5 / 4));
    }
}

TEST(Kivi, LongWindowsAreRecordsOf32Tokens) {
  Rng rng(1);
  for (const char* name : {"kivi-2", "kivi-4"}) {
    const CodecRow& codec = *find_codec(name);
    const Floats keys = normals(rng, 96 * 64), values = normals(rng, 96 * 32);
    const Coded whole = coded(codec, {96, 64, 32}, keys, values);
    for (int g = 0; g < 3; ++g) {
      const Coded part =
          coded(codec, {32, 64, 32}, Floats(keys.begin() + g * 32 * 64, keys.begin() + (g + 1) * 32 * 64),
                Floats(values.begin() + g * 32 * 32, values.begin() + (g + 1) * 32 * 32));
      EXPECT_TRUE(std::equal(part.record.begin(), part.record.end(),
                             whole.record.begin() + g * codec.window_bytes({32, 64, 32})));
    }
  }
}

// Each code of the record moves exactly one element.
TEST(Kivi, EveryBitBelongsToOneElement) {
  Rng rng(2);
  for (const int bits : {2, 4}) {
    const WindowShape shape{32, 32, 64};
    const KiviLayout layout{shape, bits};
    const CodecRow& codec = *find_codec(bits == 2 ? "kivi-2" : "kivi-4");
    Coded out = coded(codec, shape, normals(rng, 32 * 32), normals(rng, 32 * 64));
    const Coded before = out;
    const int per_byte = 8 / bits;
    const auto expect_one = [&](const Floats& now, const Floats& was, int at) {
      for (int i = 0; i < static_cast<int>(now.size()); ++i) ASSERT_EQ(now[i] != was[i], i == at) << i << " " << at;
    };
    for (int byte = 0; byte < static_cast<int>(layout.bytes()); byte += 7)
      for (int k = 0; k < per_byte; ++k) {
        const bool key = byte < static_cast<int>(layout.key_scales());
        const int in_values = byte - static_cast<int>(layout.value_codes());
        const bool value = in_values >= 0 && byte < static_cast<int>(layout.value_scales());
        if (!key && !value) continue;
        const std::byte flip{static_cast<unsigned char>(1u << k * bits)};
        out.record[byte] ^= flip;
        codec.decode(shape, out.record, {}, out.keys, out.values);
        out.record[byte] ^= flip;
        const int group_bytes = 32 / per_byte;
        expect_one(out.keys, before.keys, key ? (byte / 32 * per_byte + k) * 32 + byte % 32 : -1);
        expect_one(out.values, before.values,
                   value ? in_values / group_bytes * 32 + k * group_bytes + in_values % group_bytes : -1);
      }
  }
}

TEST(Kivi, SupportsMultiplesOf32) {
  for (const char* name : {"kivi-2", "kivi-4"}) {
    EXPECT_TRUE(find_codec(name)->supports({32, 64, 64}));
    EXPECT_TRUE(find_codec(name)->supports({128, 96, 32}));
    EXPECT_FALSE(find_codec(name)->supports({8, 64, 64}));
    EXPECT_FALSE(find_codec(name)->supports({32, 80, 64}));
    EXPECT_FALSE(find_codec(name)->supports({32, 64, 80}));
  }
}

}  // namespace
}  // namespace qevict
