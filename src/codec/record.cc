#include "codec/record.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace qevict {
namespace {

// `streams` bit streams of `stream_bits` each in rows of 2^lane_log2 bits per stream (record.h).
struct Stripes {
  int streams;
  int stream_bits;
  int lane_log2;

  int lane_bits() const { return 1 << lane_log2; }
  // Bit of the part that holds bit `bit` of `stream`.
  int position(int stream, int bit) const {
    const int row_begin = bit >> lane_log2 << lane_log2;
    const int row_lane = std::min(lane_bits(), stream_bits - row_begin);
    return row_begin * streams + stream * row_lane + (bit - row_begin);
  }
  // How many of `bits` bits at `bit` lie in the row of the first.
  int in_row(int bit, int bits) const { return std::min(bits, lane_bits() - (bit & (lane_bits() - 1))); }
};

// Up to 8 adjacent bits, in one byte or two.
unsigned get_bits(const std::byte* part, int position, int bits) {
  const int shift = position & 7;
  unsigned word = std::to_integer<unsigned>(part[position >> 3]);
  if (shift + bits > 8) word |= std::to_integer<unsigned>(part[(position >> 3) + 1]) << 8;
  return word >> shift & ((1u << bits) - 1);
}

// The bits must still be zero.
void put_bits(std::byte* part, int position, int bits, unsigned value) {
  const int shift = position & 7;
  part[position >> 3] |= static_cast<std::byte>(value << shift);
  if (shift + bits > 8) part[(position >> 3) + 1] |= static_cast<std::byte>(value << shift >> 8);
}

struct Pack {
  std::byte* part;
  const std::uint8_t* codes;
  void operator()(const Stripes& stripes, int stream, int index, int bits, int at) const {
    const int bit = index * bits, first = stripes.in_row(bit, bits);
    const unsigned code = codes[at];
    put_bits(part, stripes.position(stream, bit), first, code & ((1u << first) - 1));
    if (first < bits) put_bits(part, stripes.position(stream, bit + first), bits - first, code >> first);
  }
};

struct Unpack {
  const std::byte* part;
  std::uint8_t* codes;
  void operator()(const Stripes& stripes, int stream, int index, int bits, int at) const {
    const int bit = index * bits, first = stripes.in_row(bit, bits);
    unsigned code = get_bits(part, stripes.position(stream, bit), first);
    if (first < bits) code |= get_bits(part, stripes.position(stream, bit + first), bits - first) << first;
    codes[at] = static_cast<std::uint8_t>(code);
  }
};

int lane_log2(const CodeShape& shape) { return shape.lane_bits == 32 ? 5 : shape.lane_bits == 16 ? 4 : 3; }

// Calls move(stripes, stream, index, bits, token * dim + channel) for every code of one block of n tokens.
template <class Move>
void for_key_codes(const CodeShape& shape, int n, const Move& move) {
  const int per_token = shape.dim % 8 == 0 ? 4 : shape.dim % 4 == 0 ? 2 : 1;  // streams
  const Stripes stripes{per_token * n, shape.dim / per_token * shape.bits, lane_log2(shape)};
  for (int t = 0; t < n; ++t)
    for (int c = 0; c < shape.dim; ++c)
      move(stripes, per_token * t + c % (2 * per_token) / 2, c / (2 * per_token) * 2 + c % 2, shape.bits,
           t * shape.dim + c);
}

template <class Move>
void for_value_codes(const CodeShape& shape, int n, const Move& move) {
  const int lanes = shape.dim % 16 == 0 ? 16 : shape.dim;
  const int groups = shape.dim / lanes;
  const int apart = shape.lane_bits == 8 ? 4 : 2;  // streams of a channel
  const Stripes stripes{apart * lanes, groups * (n / apart) * shape.bits, lane_log2(shape)};
  for (int t = 0; t < n; ++t)
    for (int g = 0; g < groups; ++g)
      for (int c = 0; c < lanes; ++c)
        move(stripes, apart * c + t % apart, g * (n / apart) + t / apart, shape.bits, t * shape.dim + g * lanes + c);
}

// Where all rows are whole, as they are at usual head sizes, a row at a time: unpacking is on the path of kernels that
// have no form of their own, packing on that of windows on their way into codes. Calls place(code index, lanes) with
// the codes of all streams.
template <class Lane, class Place>
void for_rows(const std::byte* part, int streams, int n_codes, int bits, const Place& place) {
  constexpr int kLaneBits = 8 * sizeof(Lane), kMaxStreams = 64;
  const unsigned mask = (1u << bits) - 1;
  const auto row = [&](int r, Lane* lanes) {
    std::memcpy(lanes, part + static_cast<std::size_t>(r) * streams * sizeof(Lane), streams * sizeof(Lane));
  };
  Lane low[kMaxStreams], high[kMaxStreams] = {}, codes[kMaxStreams];
  for (int i = 0; i < n_codes; ++i) {
    const int bit = i * bits, shift = bit % kLaneBits;
    row(bit / kLaneBits, low);
    if (shift + bits > kLaneBits) {
      row(bit / kLaneBits + 1, high);
      for (int s = 0; s < streams; ++s)
        codes[s] = static_cast<Lane>((low[s] >> shift | high[s] << (kLaneBits - shift)) & mask);
    } else {
      for (int s = 0; s < streams; ++s) codes[s] = static_cast<Lane>(low[s] >> shift & mask);
    }
    place(i, codes);
  }
}

bool unpack_key_rows(const CodeShape& shape, int n, const std::byte* part, std::uint8_t* codes) {
  if (shape.lane_bits != 16 || shape.dim % 8 != 0 || shape.dim / 4 * shape.bits % 16 != 0) return false;
  for_rows<std::uint16_t>(part, 4 * n, shape.dim / 4, shape.bits, [&](int i, const std::uint16_t* lanes) {
    std::uint8_t* out = codes + i / 2 * 8 + i % 2;
    for (int t = 0; t < n; ++t, out += shape.dim, lanes += 4)
      for (int k = 0; k < 4; ++k) out[2 * k] = static_cast<std::uint8_t>(lanes[k]);
  });
  return true;
}

template <class Lane>
bool unpack_value_rows(const CodeShape& shape, int n, const std::byte* part, std::uint8_t* codes) {
  constexpr int kLaneBits = 8 * sizeof(Lane);
  const int apart = shape.lane_bits == 8 ? 4 : 2, n_codes = shape.dim / 16 * (n / apart);
  if (shape.lane_bits != kLaneBits || shape.dim % 16 != 0 || n_codes * shape.bits % kLaneBits != 0) return false;
  for_rows<Lane>(part, 16 * apart, n_codes, shape.bits, [&](int i, const Lane* lanes) {
    std::uint8_t* out = codes + i % (n / apart) * apart * shape.dim + i / (n / apart) * 16;
    for (int c = 0; c < 16; ++c, lanes += apart)
      for (int t = 0; t < apart; ++t) out[t * shape.dim + c] = static_cast<std::uint8_t>(lanes[t]);
  });
  return true;
}

// The other way, likewise. take(code index, lanes) fetches the codes of all streams. Codes of a row are or-ed together
// while it is in the registers.
template <class Lane, class Take>
void to_rows(std::byte* part, int streams, int n_codes, int bits, const Take& take) {
  constexpr int kLaneBits = 8 * sizeof(Lane), kMaxStreams = 64;
  Lane row[kMaxStreams] = {}, codes[kMaxStreams];
  for (int i = 0; i < n_codes; ++i) {
    take(i, codes);
    const int bit = i * bits, shift = bit % kLaneBits;
    for (int s = 0; s < streams; ++s) row[s] = static_cast<Lane>(row[s] | codes[s] << shift);
    if (shift + bits < kLaneBits) continue;
    std::memcpy(part + static_cast<std::size_t>(bit / kLaneBits) * streams * sizeof(Lane), row, streams * sizeof(Lane));
    for (int s = 0; s < streams; ++s) row[s] = static_cast<Lane>(codes[s] >> (kLaneBits - shift));
  }
}

bool pack_key_rows(const CodeShape& shape, int n, const std::uint8_t* codes, std::byte* part) {
  if (shape.lane_bits != 16 || shape.dim % 8 != 0 || shape.dim / 4 * shape.bits % 16 != 0) return false;
  to_rows<std::uint16_t>(part, 4 * n, shape.dim / 4, shape.bits, [&](int i, std::uint16_t* lanes) {
    const std::uint8_t* in = codes + i / 2 * 8 + i % 2;
    for (int t = 0; t < n; ++t, in += shape.dim, lanes += 4)
      for (int k = 0; k < 4; ++k) lanes[k] = in[2 * k];
  });
  return true;
}

template <class Lane>
bool pack_value_rows(const CodeShape& shape, int n, const std::uint8_t* codes, std::byte* part) {
  constexpr int kLaneBits = 8 * sizeof(Lane);
  const int apart = shape.lane_bits == 8 ? 4 : 2, n_codes = shape.dim / 16 * (n / apart);
  if (shape.lane_bits != kLaneBits || shape.dim % 16 != 0 || n_codes * shape.bits % kLaneBits != 0) return false;
  to_rows<Lane>(part, 16 * apart, n_codes, shape.bits, [&](int i, Lane* lanes) {
    const std::uint8_t* in = codes + i % (n / apart) * apart * shape.dim + i / (n / apart) * 16;
    for (int c = 0; c < 16; ++c, lanes += apart)
      for (int t = 0; t < apart; ++t) lanes[t] = in[t * shape.dim + c];
  });
  return true;
}

// Calls block(first token, tokens) for each block of the window.
template <class Block>
void for_blocks(const CodeShape& shape, std::size_t n_codes, std::size_t part_bytes, const Block& block) {
  QEVICT_CHECK(shape.tokens % 4 == 0 && shape.dim % 2 == 0, "codes of a block then fill whole bytes");
  QEVICT_CHECK(n_codes == static_cast<std::size_t>(shape.tokens) * shape.dim, "one code per token and channel");
  QEVICT_CHECK(part_bytes == shape.bytes(), "the part of the record that holds these codes");
  for (int t = 0; t < shape.tokens; t += kBlockTokens) block(t, std::min(kBlockTokens, shape.tokens - t));
}

}  // namespace

void pack_keys(const CodeShape& shape, std::span<const std::uint8_t> codes, std::span<std::byte> part) {
  for_blocks(shape, codes.size(), part.size(), [&](int t, int n) {
    const std::uint8_t* from = &codes[t * shape.dim];
    std::byte* to = &part[shape.block_bytes(t)];
    if (pack_key_rows(shape, n, from, to)) return;
    std::fill_n(to, shape.block_bytes(n), std::byte{0});
    for_key_codes(shape, n, Pack{to, from});
  });
}

void unpack_keys(const CodeShape& shape, std::span<const std::byte> part, std::span<std::uint8_t> codes) {
  for_blocks(shape, codes.size(), part.size(), [&](int t, int n) {
    const std::byte* from = &part[shape.block_bytes(t)];
    std::uint8_t* to = &codes[t * shape.dim];
    if (!unpack_key_rows(shape, n, from, to)) for_key_codes(shape, n, Unpack{from, to});
  });
}

void pack_values(const CodeShape& shape, std::span<const std::uint8_t> codes, std::span<std::byte> part) {
  for_blocks(shape, codes.size(), part.size(), [&](int t, int n) {
    const std::uint8_t* from = &codes[t * shape.dim];
    std::byte* to = &part[shape.block_bytes(t)];
    if (pack_value_rows<std::uint8_t>(shape, n, from, to) || pack_value_rows<std::uint16_t>(shape, n, from, to)) return;
    std::fill_n(to, shape.block_bytes(n), std::byte{0});
    for_value_codes(shape, n, Pack{to, from});
  });
}

void unpack_values(const CodeShape& shape, std::span<const std::byte> part, std::span<std::uint8_t> codes) {
  for_blocks(shape, codes.size(), part.size(), [&](int t, int n) {
    const std::byte* from = &part[shape.block_bytes(t)];
    std::uint8_t* to = &codes[t * shape.dim];
    if (!unpack_value_rows<std::uint8_t>(shape, n, from, to) && !unpack_value_rows<std::uint16_t>(shape, n, from, to))
      for_value_codes(shape, n, Unpack{from, to});
  });
}

}  // namespace qevict
