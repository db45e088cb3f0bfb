// The paper's integer codec (qevict.md 6.1, arXiv 2608.05326 section 4.3): min/max codes of kBits bits, keys per
// channel of the window, values per token. One window of one KV head, T = tokens, D = dim:
//
//   key codes | key scales f16[Dk] | key zeros f16[Dk] | value codes | value scales f16[T] | value zeros f16[T]
//
// Codes lie as record.h says, keys in lanes of 16 bits and values in lanes of 8. Key scales and zeros are in the order
// that key_slot() says.  REQUIRES: T a multiple of 4, dims even.
#pragma once

#include "codec/codec.h"
#include "codec/record.h"

namespace qevict {

// Byte offsets of the parts of a record.
struct PaperIntLayout {
  WindowShape shape;
  int bits = 2;

  constexpr CodeShape keys() const { return {shape.tokens, shape.key_dim, bits, 16}; }
  constexpr CodeShape values() const { return {shape.tokens, shape.value_dim, bits, 8}; }

  constexpr std::size_t key_codes() const { return 0; }
  constexpr std::size_t key_scales() const { return keys().bytes(); }
  constexpr std::size_t key_zeros() const { return key_scales() + 2 * static_cast<std::size_t>(shape.key_dim); }
  constexpr std::size_t value_codes() const { return key_zeros() + 2 * static_cast<std::size_t>(shape.key_dim); }
  constexpr std::size_t value_scales() const { return value_codes() + values().bytes(); }
  constexpr std::size_t value_zeros() const { return value_scales() + 2 * static_cast<std::size_t>(shape.tokens); }
  constexpr std::size_t bytes() const { return value_zeros() + 2 * static_cast<std::size_t>(shape.tokens); }

  // Index of a channel among the key scales and among the key zeros. Where dims allow, 32 of them in the order of
  // registers and places (record.h) are stored even ones first: widened to 32 bits in two vectors, scaled and blended
  // back to 16 bits, they are in the order of registers.
  constexpr int key_slot(int channel) const {
    if (shape.key_dim % 32 != 0) return channel;
    const int in_registers = 4 * (channel / 8 * 2 + channel % 2) + channel % 8 / 2;
    return in_registers / 32 * 32 + in_registers % 2 * 16 + in_registers % 32 / 2;
  }
};
static_assert(PaperIntLayout{{.tokens = 8, .key_dim = 64, .value_dim = 64}, 2}.value_codes() == 384);
static_assert(PaperIntLayout{{.tokens = 8, .key_dim = 64, .value_dim = 64}, 2}.bytes() == 544);  // f16 would be 2048

template <int kBits>
struct PaperInt {
  static bool supports(WindowShape shape);
  static std::size_t window_bytes(WindowShape shape);
  static bool encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                     std::span<const std::byte> head, std::span<std::byte> record);
  static void decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte> head,
                     std::span<float> keys, std::span<float> values);
  static void cut(WindowShape shape, std::span<const std::byte> record, int first_token, std::span<std::byte> part);

  static constexpr CodecRow row(std::string_view name, std::string_view summary) {
    return {.name = name,
            .summary = summary,
            .source = "arXiv 2608.05326, section 4.3",
            .needs = "windows of a multiple of 4 tokens and even head sizes",
            .key_bits = kBits,
            .value_bits = kBits,
            .supports = &supports,
            .window_bytes = &window_bytes,
            .head_bytes = &no_head_bytes,
            .estimate_head = nullptr,
            .encode = &encode,
            .decode = &decode,
            .cut = &cut};
  }
};
extern template struct PaperInt<2>;
extern template struct PaperInt<4>;

}  // namespace qevict
