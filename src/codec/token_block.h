// Rows of the tokens of one block side by side, [dim][8], so that loops over tokens are loops over neighbours: how
// kXvY encodes. Arithmetic is that of one token at a time, in its order: same codes, same scales.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/record.h"
#include "codec/scale8.h"

namespace qevict {

// Up to 8 tokens; places of missing ones are 0. rows: [dim][kBlockTokens].
struct TokenBlock {
  int dim = 0;
  std::vector<float> rows;

  float* channel(int d) { return rows.data() + static_cast<std::size_t>(d) * kBlockTokens; }
  const float* channel(int d) const { return rows.data() + static_cast<std::size_t>(d) * kBlockTokens; }
};

// Of n tokens. given: [n][dim].
void load_rows(std::span<const float> given, int n, TokenBlock& block);
// rotate_values() of every token.
void rotate_rows(TokenBlock& block, std::span<const float> signs);
// encode_token() of every token. excluded: [dim], such channels must be 0 in all rows; or empty. codes: [n][dim];
// scales: [n].
void encode_rows(const TokenBlock& block, std::span<const std::uint8_t> excluded, int bits, ScaleRule rule, int n,
                 std::span<std::uint8_t> codes, std::span<std::byte> scales);

}  // namespace qevict
