// KIVI (arXiv 2402.02750): min/max codes of 2 or 4 bits, keys per channel over groups of 32 tokens, after RoPE, values
// per token over groups of 32 channels. For each group of 32 tokens of the window, so that a window of 64 is exactly
// two records of 32; with m = 8 / bits codes to a byte:
//
//   key codes u8[32 / m][Dk]              byte (i, c): channel c of tokens m i + k in bits [k b, (k + 1) b), k < m
//   key scales f16[Dk] | key zeros f16[Dk]
//   value codes u8[32][Dv / 32][32 / m]   byte (t, g, i): token t, channels 32 g + i + (32 / m) k, likewise
//   value scales f16[32][Dv / 32] | value zeros f16[32][Dv / 32]
//
// x = zero + code * scale (min_max.h).  REQUIRES: tokens and dims multiples of 32.
#pragma once

#include "codec/codec.h"

namespace qevict {

inline constexpr int kKiviGroup = 32;  // tokens of a key's group, channels of a value's

// Byte offsets of the parts of a group of 32 tokens.
struct KiviLayout {
  WindowShape shape;
  int bits = 2;

  constexpr std::size_t code_bytes(int dim) const { return static_cast<std::size_t>(kKiviGroup) * dim * bits / 8; }
  constexpr std::size_t key_codes() const { return 0; }
  constexpr std::size_t key_scales() const { return code_bytes(shape.key_dim); }
  constexpr std::size_t key_zeros() const { return key_scales() + 2 * static_cast<std::size_t>(shape.key_dim); }
  constexpr std::size_t value_codes() const { return key_zeros() + 2 * static_cast<std::size_t>(shape.key_dim); }
  constexpr std::size_t value_scales() const { return value_codes() + code_bytes(shape.value_dim); }
  // 32 tokens of Dv / 32 groups: as many halves as channels.
  constexpr std::size_t value_zeros() const { return value_scales() + 2 * static_cast<std::size_t>(shape.value_dim); }
  constexpr std::size_t group_bytes() const { return value_zeros() + 2 * static_cast<std::size_t>(shape.value_dim); }
  constexpr std::size_t bytes() const { return static_cast<std::size_t>(shape.tokens / kKiviGroup) * group_bytes(); }
};
static_assert(KiviLayout{{.tokens = 32, .key_dim = 64, .value_dim = 64}, 2}.bytes() == 1536);  // f16 would be 8192
static_assert(KiviLayout{{.tokens = 32, .key_dim = 64, .value_dim = 64}, 4}.bytes() == 2560);

template <int kBits>
struct Kivi {
  static bool supports(WindowShape shape);
  static std::size_t window_bytes(WindowShape shape);
  static bool encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                     std::span<const std::byte> head, std::span<std::byte> record);
  static void decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte> head,
                     std::span<float> keys, std::span<float> values);

  static constexpr CodecRow row(std::string_view name, std::string_view summary) {
    return {.name = name,
            .summary = summary,
            .source = "arXiv 2402.02750, g = 32",
            .needs = "windows and head sizes that are multiples of 32",
            .key_bits = kBits,
            .value_bits = kBits,
            .window_tokens = kKiviGroup,
            .keys_after_rope = true,
            .supports = &supports,
            .window_bytes = &window_bytes,
            .head_bytes = &no_head_bytes,
            .estimate_head = nullptr,
            .encode = &encode,
            .decode = &decode};
  }
};
extern template struct Kivi<2>;
extern template struct Kivi<4>;

}  // namespace qevict
