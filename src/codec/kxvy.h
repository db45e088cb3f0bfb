// The family kXvY (qevict.md 6.2): Lloyd-Max codes of X bits for keys and Y bits for values, one 8-bit scale per token.
// Keys are coded before RoPE, normalised by the mean and deviation of each channel, which are frozen per head; values
// with the head's mean removed and rotated (hadamard.h). For each block of 8 tokens (the last may have 4):
//
//   key codes | value codes | key scales u8[tokens] | value scales u8[tokens]          codes: record.h, lanes of 16
//   bits
//
// Head parameters: key mean f16[Dk] | key deviation f16[Dk] | value mean f16[Dv].  REQUIRES: tokens a multiple of 4,
// dims even, value_dim <= 1024.
//
// key   = mean + deviation * scale * level        (deviation 0: the mean)
// value = mean + signs o H (scale * level) / sqrt(block)
//
// Two things differ from section 6.2, both measured (docs/design.md): a value's scale is ScaleRule::midway, and the
// mean of values counts as resting on 32 tokens of zeros more, since a head first demoted with few tokens keeps it for
// good.
#pragma once

#include "codec/codec.h"
#include "codec/record.h"
#include "codec/scale8.h"

namespace qevict {

// Byte offsets of the parts of a block of `tokens` tokens, and of the head parameters.
struct KxvyLayout {
  WindowShape shape;
  int key_bits = 3;
  int value_bits = 2;

  constexpr CodeShape keys(int tokens) const { return {tokens, shape.key_dim, key_bits, 16}; }
  constexpr CodeShape values(int tokens) const { return {tokens, shape.value_dim, value_bits, 16}; }

  constexpr std::size_t key_codes() const { return 0; }
  constexpr std::size_t value_codes(int tokens) const { return keys(tokens).bytes(); }
  constexpr std::size_t key_scales(int tokens) const { return value_codes(tokens) + values(tokens).bytes(); }
  constexpr std::size_t value_scales(int tokens) const { return key_scales(tokens) + static_cast<std::size_t>(tokens); }
  constexpr std::size_t block_bytes(int tokens) const {
    return value_scales(tokens) + static_cast<std::size_t>(tokens);
  }
  // Every part grows with the tokens, so the bytes of n tokens do not depend on how they are cut into blocks.
  constexpr std::size_t bytes() const { return block_bytes(shape.tokens); }
  constexpr std::size_t block_at(int token) const { return block_bytes(token); }

  constexpr std::size_t key_means() const { return 0; }
  constexpr std::size_t key_deviations() const { return 2 * static_cast<std::size_t>(shape.key_dim); }
  constexpr std::size_t value_means() const { return 4 * static_cast<std::size_t>(shape.key_dim); }
  constexpr std::size_t head_bytes() const { return value_means() + 2 * static_cast<std::size_t>(shape.value_dim); }
};
static_assert(KxvyLayout{{.tokens = 8, .key_dim = 64, .value_dim = 64}, 3, 2}.bytes() == 336);  // f16 would be 2048
static_assert(KxvyLayout{{.tokens = 8, .key_dim = 64, .value_dim = 64}, 3, 2}.head_bytes() == 384);

// Codes of one token and its 8-bit scale. row: [dim], normalised keys or rotated values; excluded: [dim] or empty,
// channels that take part in nothing and get code 2^(bits-1). codes: [dim]. Returns the scale. REQUIRES: row is finite.
std::uint8_t encode_token(std::span<const float> row, std::span<const std::uint8_t> excluded, int bits, ScaleRule rule,
                          std::span<std::uint8_t> codes);

template <int kKeyBits, int kValueBits>
struct Kxvy {
  static bool supports(WindowShape shape);
  static std::size_t window_bytes(WindowShape shape);
  static std::size_t head_bytes(WindowShape shape);
  static void estimate_head(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                            std::span<std::byte> head);
  static bool encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                     std::span<const std::byte> head, std::span<std::byte> record);
  static void decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte> head,
                     std::span<float> keys, std::span<float> values);
  static void cut(WindowShape shape, std::span<const std::byte> record, int first_token, std::span<std::byte> part);

  static constexpr CodecRow row(std::string_view name, std::string_view summary) {
    return {.name = name,
            .summary = summary,
            .source = "qevict, section 6.2; Lloyd 1982, Max 1960",
            .needs = "windows of a multiple of 4 tokens and even head sizes up to 1024",
            .key_bits = kKeyBits,
            .value_bits = kValueBits,
            .supports = &supports,
            .window_bytes = &window_bytes,
            .head_bytes = &head_bytes,
            .estimate_head = &estimate_head,
            .encode = &encode,
            .decode = &decode,
            .cut = &cut};
  }
};
extern template struct Kxvy<2, 2>;
extern template struct Kxvy<2, 3>;
extern template struct Kxvy<2, 4>;
extern template struct Kxvy<3, 2>;
extern template struct Kxvy<3, 3>;
extern template struct Kxvy<3, 4>;
extern template struct Kxvy<4, 2>;
extern template struct Kxvy<4, 3>;
extern template struct Kxvy<4, 4>;

}  // namespace qevict
