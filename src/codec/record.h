// The pieces that records are made of: where the bits of codes lie, and half-precision numbers. Little-endian.
//
// Codes of 8 tokens form a block; a window of 16 or 32 stores one block after the other (the last may have 4 tokens),
// so a kernel knows one shape. Inside a block codes are dealt to parallel bit streams, and rows hold the next 8, 16
// or 32 bits ("lane") of every stream, as SIMD registers want them. What is left at the end of the streams is one row
// of narrower lanes: nothing is padded. Code i of a stream is its bits [i*bits, (i+1)*bits), lowest first; it may
// straddle two rows.
//
//   keys:   channel c has register 2 * (c / 8) + c % 2 and place c % 8 / 2: four channels of equal parity share a
//   register,
//           so that both members of a RoPE pair, (c, c + 1) or (c, c + dim / 2), lie in two registers at the same
//           place. Stream 4 * token + place; code index = register. Dims that are no multiple of 8 have two places a
//           token (register 2 * (c / 4) + c % 2, place c % 4 / 2), or one (register c) if no multiple of 4.
//   values: channels in groups of 16 (a single group if dim is no multiple of 16). Lane c of every group has its stream
//           2c for even tokens and 2c + 1 for odd ones; code index = group * (block tokens / 2) + token / 2. Lanes of 8
//           bits: streams 4c .. 4c + 3 for tokens 0 .. 3 modulo 4; code index = group * (block tokens / 4) + token / 4.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/finite.h"
#include "base/half.h"

namespace qevict {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

inline constexpr int kBlockTokens = 8;

// The codes of one window, keys or values. REQUIRES: tokens a multiple of 4, dim even, bits 1..8.
struct CodeShape {
  int tokens = 8;
  int dim = 64;
  int bits = 2;
  int lane_bits = 16;  // 8 (values only), 16 or 32

  constexpr std::size_t bytes() const { return block_bytes(tokens); }
  constexpr std::size_t block_bytes(int block_tokens) const {
    return static_cast<std::size_t>(block_tokens) * dim * bits / 8;
  }
};

// codes: [tokens][dim], part: [shape.bytes()].
void pack_keys(const CodeShape& shape, std::span<const std::uint8_t> codes, std::span<std::byte> part);
void unpack_keys(const CodeShape& shape, std::span<const std::byte> part, std::span<std::uint8_t> codes);
void pack_values(const CodeShape& shape, std::span<const std::uint8_t> codes, std::span<std::byte> part);
void unpack_values(const CodeShape& shape, std::span<const std::byte> part, std::span<std::uint8_t> codes);

// part: bytes of an array of halves.
inline Half load_half(std::span<const std::byte> part, int index) {
  Half half;
  std::memcpy(&half.bits, &part[2 * index], sizeof(half.bits));
  return half;
}
inline void store_half(std::span<std::byte> part, int index, Half half) {
  std::memcpy(&part[2 * index], &half.bits, sizeof(half.bits));
}

}  // namespace qevict
