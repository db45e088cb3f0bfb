#include "codec/record.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace qevict {
namespace {

using Codes = std::vector<std::uint8_t>;

Codes random_codes(Rng& rng, const CodeShape& shape) {
  Codes codes(shape.tokens * shape.dim);
  for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(rng.below(1u << shape.bits));
  return codes;
}

std::vector<CodeShape> shapes() {
  std::vector<CodeShape> all;
  for (const int tokens : {4, 8, 12, 16, 32})
    for (const int dim : {2, 4, 6, 8, 16, 64, 80, 96, 112, 128, 192, 256})
      for (const int bits : {2, 3, 4})
        for (const int lane_bits : {8, 16, 32}) all.push_back({tokens, dim, bits, lane_bits});
  return all;
}

TEST(Record, CodesComeBackAndFillEveryBit) {
  Rng rng(1);
  for (const CodeShape& shape : shapes()) {
    const Codes codes = random_codes(rng, shape), ones(codes.size(), static_cast<std::uint8_t>((1 << shape.bits) - 1));
    Codes back(codes.size());
    std::vector<std::byte> part(shape.bytes());
    ASSERT_EQ(part.size() * 8, codes.size() * shape.bits);
    pack_keys(shape, codes, part);
    unpack_keys(shape, part, back);
    EXPECT_EQ(back, codes);
    pack_values(shape, codes, part);
    unpack_values(shape, part, back);
    EXPECT_EQ(back, codes);
    // All ones give all bits: no padding, so as many bits as codes, each used once.
    pack_keys(shape, ones, part);
    EXPECT_EQ(part, std::vector<std::byte>(part.size(), std::byte{0xff}));
    pack_values(shape, ones, part);
    EXPECT_EQ(part, std::vector<std::byte>(part.size(), std::byte{0xff}));
  }
}

// Whole rows, as kernels read them: row r of keys has 16 bits of every stream, 64 bytes; lane (t, place).
TEST(Record, RowsOfWholeLanes) {
  Rng rng(2);
  for (const int dim : {32, 64, 128, 256})
    for (const int bits : {2, 3, 4}) {
      const CodeShape shape{8, dim, bits, 16}, quads{8, dim, bits, 8};
      const Codes codes = random_codes(rng, shape);
      std::vector<std::byte> part(shape.bytes());
      const auto bit_at = [&part](int byte, int bit) {
        return std::to_integer<int>(part[byte + bit / 8]) >> bit % 8 & 1;
      };
      if (dim % 64 != 0) continue;
      pack_keys(shape, codes, part);
      for (int t = 0; t < 8; ++t)
        for (int c = 0; c < dim; ++c)
          for (int b = 0; b < bits; ++b) {
            const int bit = (c / 8 * 2 + c % 2) * bits + b;
            EXPECT_EQ(bit_at(bit / 16 * 64 + t * 8 + c % 8 / 2 * 2, bit % 16), codes[t * dim + c] >> b & 1);
          }
      pack_values(shape, codes, part);
      for (int t = 0; t < 8; ++t)
        for (int c = 0; c < dim; ++c)
          for (int b = 0; b < bits; ++b) {
            const int bit = (c / 16 * 4 + t / 2) * bits + b;
            EXPECT_EQ(bit_at(bit / 16 * 64 + c % 16 * 4 + t % 2 * 2, bit % 16), codes[t * dim + c] >> b & 1);
          }
      pack_values(quads, codes, part);
      for (int t = 0; t < 8; ++t)
        for (int c = 0; c < dim; ++c)
          for (int b = 0; b < bits; ++b) {
            const int bit = (c / 16 * 2 + t / 4) * bits + b;
            EXPECT_EQ(bit_at(bit / 8 * 64 + c % 16 * 4 + t % 4, bit % 8), codes[t * dim + c] >> b & 1);
          }
    }
}

TEST(Record, LongWindowsAreBlocksOfEightTokens) {
  Rng rng(3);
  const CodeShape window{32, 80, 3, 16}, block{8, 80, 3, 16};
  const Codes codes = random_codes(rng, window);
  std::vector<std::byte> whole(window.bytes()), part(block.bytes());
  for (const auto pack : {&pack_keys, &pack_values}) {
    pack(window, codes, whole);
    for (int b = 0; b < 4; ++b) {
      pack(block, std::span(codes).subspan(b * 8 * 80, 8 * 80), part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + b * block.bytes()));
    }
  }
}

TEST(Record, NonFiniteValuesAreSeen) {
  EXPECT_TRUE(all_finite(std::vector<float>{0, -1e38f, 1e-45f}));
  EXPECT_FALSE(all_finite(std::vector<float>{0, std::numeric_limits<float>::infinity()}));
  EXPECT_FALSE(all_finite(std::vector<float>{std::numeric_limits<float>::quiet_NaN(), 0}));
}

}  // namespace
}  // namespace qevict
