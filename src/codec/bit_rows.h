// Rows of codes as plain bit strings: code i of a row is bits [i * bits, (i + 1) * bits) of it, lowest first, whatever
// bytes they straddle. Little-endian.  REQUIRES: rows of a multiple of 8 codes, which fill whole bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace qevict {

constexpr std::size_t bit_row_bytes(int dim, int bits) { return static_cast<std::size_t>(dim) * bits / 8; }

// codes: [dim], row: [bit_row_bytes].
template <int kBits>
void pack_bit_row(std::span<const std::uint8_t> codes, std::span<std::byte> row) {
  for (std::size_t c = 0, at = 0; c < codes.size(); c += 8, at += kBits) {
    std::uint32_t bits = 0;
    for (int k = 0; k < 8; ++k) bits |= static_cast<std::uint32_t>(codes[c + k]) << kBits * k;
    std::memcpy(&row[at], &bits, kBits);
  }
}

// out: [dim], of value(code) for each code.
template <int kBits, class Value>
void unpack_bit_row(std::span<const std::byte> row, std::span<float> out, const Value& value) {
  const std::byte* at = row.data();
  for (std::size_t c = 0; c < out.size(); c += 8, at += kBits) {
    std::uint32_t bits = 0;  // byte by byte: three bytes copied at once would be stored and read again
    for (int b = 0; b < kBits; ++b) bits |= std::to_integer<std::uint32_t>(at[b]) << 8 * b;
    for (int k = 0; k < 8; ++k) out[c + k] = value(bits >> kBits * k & ((1u << kBits) - 1));
  }
}

}  // namespace qevict
