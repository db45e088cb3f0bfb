#include "codec/block32.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "codec/hadamard.h"
#include "codec/min_max.h"
#include "codec/record.h"

namespace qevict {
namespace {

using Block = std::span<const float, kBlockChannels>;

// 0 where d is 0, or so small that its inverse is infinite.
float inverse(float d) {
  const float result = d == 0.0f ? 0.0f : 1.0f / d;
  return std::isfinite(result) ? result : 0.0f;
}

// Half a step is already added. A false comparison catches what an overflow of max - min left.
int nibble(float scaled) { return static_cast<int>(scaled < 15.5f ? scaled : 15.0f); }

// Half away from zero, as std::round, without a call: |x| is at most 127 and a bit.
int rounded(float x) {
  const int whole = static_cast<int>(x);
  const float rest = x - static_cast<float>(whole);
  return whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
}

float largest_magnitude(Block x) {
  float lanes[8] = {};  // side by side
  for (int j = 0; j < kBlockChannels; j += 8)
    for (int k = 0; k < 8; ++k) lanes[k] = std::max(lanes[k], std::abs(x[j + k]));
  return *std::max_element(lanes, lanes + 8);
}

void encode_q8_0(Block x, std::byte* out) {
  const float d = largest_magnitude(x) / 127.0f, scale = inverse(d);
  store_half({out, 2}, 0, to_half_saturated(d));
  for (int j = 0; j < kBlockChannels; ++j)
    out[2 + j] = static_cast<std::byte>(static_cast<std::int8_t>(rounded(x[j] * scale)));
}

void decode_q8_0(const std::byte* in, float* x) {
  const float d = to_float(load_half({in, 2}, 0));
  for (int j = 0; j < kBlockChannels; ++j) x[j] = d * static_cast<float>(static_cast<std::int8_t>(in[2 + j]));
}

void encode_nibbles(Block x, float from, float scale, float half_step, std::byte* out) {
  for (int j = 0; j < 16; ++j) {
    const int low = nibble((x[j] - from) * scale + half_step);
    const int high = nibble((x[j + 16] - from) * scale + half_step);
    out[j] = static_cast<std::byte>(low | high << 4);
  }
}

void decode_nibbles(const std::byte* in, int zero, float d, float m, float* x) {
  for (int j = 0; j < 16; ++j) {
    const int byte = std::to_integer<int>(in[j]);
    x[j] = d * static_cast<float>((byte & 15) - zero) + m;
    x[j + 16] = d * static_cast<float>((byte >> 4) - zero) + m;
  }
}

void encode_q4_0(Block x, std::byte* out) {
  // With its sign; the first of equal magnitudes, and +0 if all are zeros.
  const float magnitude = largest_magnitude(x);
  float largest = 0.0f;
  if (magnitude > 0.0f)
    largest = *std::ranges::find_if(x, [magnitude](float value) { return std::abs(value) == magnitude; });
  const float d = largest / -8.0f;
  store_half({out, 2}, 0, to_half_saturated(d));
  encode_nibbles(x, 0.0f, inverse(d), 8.5f, out + 2);
}

void encode_q4_1(Block x, std::byte* out) {
  const auto [lowest, highest] = min_max(x);
  const float d = (highest - lowest) / 15.0f;
  store_half({out, 4}, 0, to_half_saturated(d));
  store_half({out, 4}, 1, to_half_saturated(lowest));
  encode_nibbles(x, lowest, inverse(d), 0.5f, out + 4);
}

void check_window(const Block32Layout& layout, bool rotated, std::size_t n_keys, std::size_t n_values,
                  std::size_t record_bytes) {
  const auto [tokens, key_dim, value_dim] = layout.shape;
  const int multiple = rotated ? 64 : kBlockChannels;
  QEVICT_CHECK(tokens > 0, "a window has tokens");
  QEVICT_CHECK(key_dim > 0 && key_dim % multiple == 0 && value_dim > 0 && value_dim % multiple == 0,
               "blocks of 32 channels, transforms of 64");
  QEVICT_CHECK(n_keys == static_cast<std::size_t>(tokens) * key_dim, "the keys of one window");
  QEVICT_CHECK(n_values == static_cast<std::size_t>(tokens) * value_dim, "the values of one window");
  QEVICT_CHECK(record_bytes == layout.bytes(), "a record of window_bytes");
}

bool encode_window(const Block32Layout& layout, bool rotated, std::span<const float> keys,
                   std::span<const float> values, std::span<std::byte> record) {
  check_window(layout, rotated, keys.size(), values.size(), record.size());
  if (!all_finite(keys) || !all_finite(values)) return false;
  // All rows of a part have as many blocks, so the rows need no loop of their own.
  const std::size_t value_part = layout.value_row(0);
  if (!rotated) {
    encode_blocks(layout.type, keys, record.first(value_part));
    encode_blocks(layout.type, values, record.subspan(value_part));
    return true;
  }
  std::vector<float> turned(keys.begin(), keys.end());
  hadamard_blocks(turned, key_rotation_block(layout.shape.key_dim));
  if (!all_finite(turned)) return false;
  encode_blocks(layout.type, turned, record.first(value_part));
  turned.assign(values.begin(), values.end());
  hadamard_blocks(turned, kValueRotationBlock);
  if (!all_finite(turned)) return false;
  encode_blocks(layout.type, turned, record.subspan(value_part));
  return true;
}

void decode_window(const Block32Layout& layout, bool rotated, std::span<const std::byte> record, std::span<float> keys,
                   std::span<float> values) {
  check_window(layout, rotated, keys.size(), values.size(), record.size());
  const std::size_t value_part = layout.value_row(0);
  decode_blocks(layout.type, record.first(value_part), keys);
  decode_blocks(layout.type, record.subspan(value_part), values);
  if (!rotated) return;
  hadamard_blocks(keys, key_rotation_block(layout.shape.key_dim));
  hadamard_blocks(values, kValueRotationBlock);
}

}  // namespace

void encode_blocks(BlockType type, std::span<const float> row, std::span<std::byte> part) {
  QEVICT_CHECK(row.size() % kBlockChannels == 0 && part.size() == row_bytes(type, static_cast<int>(row.size())),
               "whole blocks");
  std::byte* out = part.data();
  for (std::size_t c = 0; c < row.size(); c += kBlockChannels, out += block_bytes(type)) {
    const auto x = row.subspan(c).first<kBlockChannels>();
    if (type == BlockType::q8_0) {
      encode_q8_0(x, out);
    } else if (type == BlockType::q4_0) {
      encode_q4_0(x, out);
    } else {
      encode_q4_1(x, out);
    }
  }
}

void decode_blocks(BlockType type, std::span<const std::byte> part, std::span<float> row) {
  QEVICT_CHECK(row.size() % kBlockChannels == 0 && part.size() == row_bytes(type, static_cast<int>(row.size())),
               "whole blocks");
  const std::byte* in = part.data();
  for (std::size_t c = 0; c < row.size(); c += kBlockChannels, in += block_bytes(type)) {
    float* x = &row[c];
    if (type == BlockType::q8_0) {
      decode_q8_0(in, x);
    } else if (type == BlockType::q4_0) {
      decode_nibbles(in + 2, 8, to_float(load_half({in, 2}, 0)), 0.0f, x);
    } else {
      decode_nibbles(in + 4, 0, to_float(load_half({in, 4}, 0)), to_float(load_half({in, 4}, 1)), x);
    }
  }
}

template <BlockType kType, bool kRotated>
bool Block32<kType, kRotated>::supports(WindowShape shape) {
  constexpr int kMultiple = kRotated ? 64 : kBlockChannels;
  return shape.tokens > 0 && shape.key_dim > 0 && shape.key_dim % kMultiple == 0 && shape.value_dim > 0 &&
         shape.value_dim % kMultiple == 0;
}

template <BlockType kType, bool kRotated>
std::size_t Block32<kType, kRotated>::window_bytes(WindowShape shape) {
  return Block32Layout{shape, kType}.bytes();
}

template <BlockType kType, bool kRotated>
bool Block32<kType, kRotated>::encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                                      std::span<const std::byte>, std::span<std::byte> record) {
  return encode_window({shape, kType}, kRotated, keys, values, record);
}

template <BlockType kType, bool kRotated>
void Block32<kType, kRotated>::decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte>,
                                      std::span<float> keys, std::span<float> values) {
  decode_window({shape, kType}, kRotated, record, keys, values);
}

template struct Block32<BlockType::q8_0, false>;
template struct Block32<BlockType::q8_0, true>;
template struct Block32<BlockType::q4_0, false>;
template struct Block32<BlockType::q4_0, true>;
template struct Block32<BlockType::q4_1, false>;
template struct Block32<BlockType::q4_1, true>;

}  // namespace qevict
