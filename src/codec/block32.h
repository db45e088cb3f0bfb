// Blocks of 32 channels as llama.cpp's quantized caches hold them, byte for byte (ggml's block_q8_0, block_q4_0 and
// block_q4_1), keys after RoPE. One window of one KV head:
//
//   key blocks [tokens][Dk / 32] | value blocks [tokens][Dv / 32]
//
//   q8_0, 34 bytes   d f16 | code i8[32]              x = code d             d = max |x| / 127
//   q4_0, 18 bytes   d f16 | nibbles u8[16]           x = (code - 8) d       d = (x of largest magnitude) / -8
//   q4_1, 20 bytes   d f16 | m f16 | nibbles u8[16]   x = code d + m         d = (max - min) / 15, m = min
//
// Channels j and j + 16 share byte j of the nibbles, j in the low one. Codes are made with the f32 d.
//
// Rotated (names ending in r), as llama.cpp does where head sizes are multiples of 64: keys, after RoPE, and values go
// through a Walsh-Hadamard transform first, keys in the largest blocks 64 * 2^k that divide the head, values in blocks
// of 64. Attention then transforms the query and, once, the weighted sum of values.
#pragma once

#include <type_traits>

#include "codec/codec.h"

namespace qevict {

inline constexpr int kBlockChannels = 32;

enum class BlockType : std::uint8_t { q8_0, q4_0, q4_1 };

constexpr std::size_t block_bytes(BlockType type) {
  return type == BlockType::q8_0 ? 2 + 32 : type == BlockType::q4_0 ? 2 + 16 : 4 + 16;
}
constexpr std::size_t row_bytes(BlockType type, int dim) {
  return static_cast<std::size_t>(dim / kBlockChannels) * block_bytes(type);
}

// Byte offsets of the parts of a record.
struct Block32Layout {
  WindowShape shape;
  BlockType type = BlockType::q8_0;

  constexpr std::size_t key_row(int token) const {
    return static_cast<std::size_t>(token) * row_bytes(type, shape.key_dim);
  }
  constexpr std::size_t value_row(int token) const {
    return key_row(shape.tokens) + static_cast<std::size_t>(token) * row_bytes(type, shape.value_dim);
  }
  constexpr std::size_t bytes() const { return value_row(shape.tokens); }
};
static_assert(Block32Layout{{.tokens = 8, .key_dim = 64, .value_dim = 64}, BlockType::q8_0}.bytes() == 1088);
static_assert(Block32Layout{{.tokens = 8, .key_dim = 64, .value_dim = 64}, BlockType::q4_0}.bytes() == 576);

// Size of the transforms of rotated keys.
constexpr int key_rotation_block(int key_dim) {
  int block = 64;
  while (key_dim % (2 * block) == 0) block *= 2;
  return block;
}
inline constexpr int kValueRotationBlock = 64;

// row: a multiple of 32 channels; part: [row_bytes]. REQUIRES: row is finite.
void encode_blocks(BlockType type, std::span<const float> row, std::span<std::byte> part);
void decode_blocks(BlockType type, std::span<const std::byte> part, std::span<float> row);

template <BlockType kType, bool kRotated>
struct Block32 {
  static bool supports(WindowShape shape);
  static std::size_t window_bytes(WindowShape shape);
  static bool encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                     std::span<const std::byte> head, std::span<std::byte> record);
  static void decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte> head,
                     std::span<float> keys, std::span<float> values);

  static constexpr CodecRow row(std::string_view name, std::string_view summary) {
    constexpr int kBits = kType == BlockType::q8_0 ? 8 : 4;
    return {.name = name,
            .summary = summary,
            .source = kRotated ? "llama.cpp, pull request 21038" : "llama.cpp, ggml-common.h",
            .needs = kRotated ? "head sizes that are multiples of 64" : "head sizes that are multiples of 32",
            .key_bits = kBits,
            .value_bits = kBits,
            .keys_after_rope = true,
            .supports = &supports,
            .window_bytes = &window_bytes,
            .head_bytes = &no_head_bytes,
            .estimate_head = nullptr,
            .encode = &encode,
            .decode = &decode};
  }
};
extern template struct Block32<BlockType::q8_0, false>;
extern template struct Block32<BlockType::q8_0, true>;
extern template struct Block32<BlockType::q4_0, false>;
extern template struct Block32<BlockType::q4_0, true>;
extern template struct Block32<BlockType::q4_1, false>;
extern template struct Block32<BlockType::q4_1, true>;

// Calls f(integral constant type, whether rotated) if the codec is a row of Block32. Returns whether it is.
template <class F>
bool with_block_type(const CodecRow& codec, F f) {
  const auto is = [&](auto type) {
    constexpr BlockType kType = decltype(type)::value;
    const bool rotated = codec.decode == &Block32<kType, true>::decode;
    if (!rotated && codec.decode != &Block32<kType, false>::decode) return false;
    f(type, rotated);
    return true;
  };
  return is(std::integral_constant<BlockType, BlockType::q8_0>()) ||
         is(std::integral_constant<BlockType, BlockType::q4_0>()) ||
         is(std::integral_constant<BlockType, BlockType::q4_1>());
}

}  // namespace qevict
