// ZipCache (arXiv 2405.14256): in each chunk the 40 % of tokens that matter least get codes of 2 bits, the others of 4.
// Keys after RoPE, per channel between minimum and maximum of the class's tokens; values per token, each channel
// divided by c = sqrt(max |v|) over the chunk first. A window's record is one chunk of T tokens:
//
//   class u8[ceil(T / 8)]                      token t: bit t % 8 of byte t / 8, 1 = salient, 4 bits
//   key scales f16[2][Dk] | key zeros f16[2][Dk]                    salient, then the others
//   value channels c f16[Dv] | value scales f16[T] | value zeros f16[T]
//   key codes   [3 T / 5][Dk / 2] of the salient tokens in their order | [2 T / 5][Dk / 4] of the others    bit_rows.h
//   value codes [3 T / 5][Dv / 2] | [2 T / 5][Dv / 4]
//
// key = zero + code * scale, value = (zero + code * scale) * c (min_max.h).  REQUIRES: tokens a multiple of 5, dims of
// 8 up to 512.
//
// The source takes the prompt as one chunk, whose 40 % are those of the whole prompt; here it is chunks like any other.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/bit_rows.h"
#include "codec/codec.h"

namespace qevict {

inline constexpr int kZipLargestDim = 512;

// Byte offsets of the parts of a chunk. Class 0: others, 2 bits; class 1: salient, 4 bits.
struct ZipLayout {
  WindowShape shape;

  constexpr std::size_t tokens() const { return static_cast<std::size_t>(shape.tokens); }
  constexpr std::size_t key_dim() const { return static_cast<std::size_t>(shape.key_dim); }
  constexpr std::size_t value_dim() const { return static_cast<std::size_t>(shape.value_dim); }
  constexpr std::size_t class_tokens(int salient) const { return tokens() * (salient ? 3 : 2) / 5; }
  static constexpr int bits(int salient) { return salient ? 4 : 2; }
  constexpr std::size_t code_bytes(int dim, int salient) const {
    return class_tokens(salient) * bit_row_bytes(dim, bits(salient));
  }

  constexpr std::size_t classes() const { return 0; }
  constexpr std::size_t key_scales(int salient) const { return (tokens() + 7) / 8 + (salient ? 0 : 2 * key_dim()); }
  constexpr std::size_t key_zeros(int salient) const { return key_scales(salient) + 4 * key_dim(); }
  constexpr std::size_t channels() const { return key_scales(1) + 8 * key_dim(); }
  constexpr std::size_t value_scales() const { return channels() + 2 * value_dim(); }
  constexpr std::size_t value_zeros() const { return value_scales() + 2 * tokens(); }
  constexpr std::size_t key_codes(int salient) const {
    return value_zeros() + 2 * tokens() + (salient ? 0 : code_bytes(shape.key_dim, 1));
  }
  constexpr std::size_t value_codes(int salient) const {
    return key_codes(0) + code_bytes(shape.key_dim, 0) + (salient ? 0 : code_bytes(shape.value_dim, 1));
  }
  constexpr std::size_t bytes() const { return value_codes(0) + code_bytes(shape.value_dim, 0); }
};
static_assert(ZipLayout{{.tokens = 100, .key_dim = 64, .value_dim = 64}}.bytes() == 6173);  // f16 would be 25600

struct Zip {
  static bool supports(WindowShape shape);
  static std::size_t window_bytes(WindowShape shape);
  // Without scores a token matters as much as its value row is long (L2); of equals the later matters more.
  static bool encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                     std::span<const std::byte> head, std::span<std::byte> record);
  static bool encode_with(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                          const TokenSide& side, std::span<const std::byte> head, std::span<std::byte> record);
  static void decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte> head,
                     std::span<float> keys, std::span<float> values);

  static constexpr CodecRow row(std::string_view name, std::string_view summary) {
    return {.name = name,
            .summary = summary,
            .source = "arXiv 2405.14256, 60 % salient",
            .needs = "windows of a multiple of 5 tokens and head sizes that are multiples of 8 up to 512",
            .key_bits = 4,
            .value_bits = 4,
            .window_tokens = 100,
            .keys_after_rope = true,
            .supports = &supports,
            .window_bytes = &window_bytes,
            .head_bytes = &no_head_bytes,
            .estimate_head = nullptr,
            .encode = &encode,
            .uses_scores = true,
            .encode_with = &encode_with,
            .decode = &decode};
  }
};

// --- Saliency ------------------------------------------------------------------------------------------------------

// Rows of a prompt of n tokens whose attention is looked at: the last 5 % and as many of the others, drawn at random
// without repetition; at least one of each where there are two tokens. Ascending.
std::vector<int> zip_probes(int n_tokens, std::uint64_t seed);

struct ZipProbe {
  int position;                // of the row's query
  std::span<const float> row;  // [position + 1], probabilities summed over the group's query heads
};
enum class ZipNormalisation {
  visible_probes,  // the paper's: by the number of probes that see the token
  code,            // the released program's: by the rows that see it, n - i
};
// scores: [n_tokens], written: sums of the probes' probabilities, normalised; 0 where no probe sees the token.
// REQUIRES: different positions.
void zip_saliency(std::span<const ZipProbe> probes, ZipNormalisation normalisation, std::span<float> scores);

}  // namespace qevict
