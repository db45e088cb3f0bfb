// Packed keys and values as AMX tiles of split bf16, and the two products of a block. Include it inside the target
// options of prefill_amx.cc, after <immintrin.h>.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace qevict {
namespace {

#define QEVICT_INLINE __attribute__((always_inline)) inline

constexpr int kTileBytes = 1024;
constexpr int kTileRows = 16;
constexpr int kDepth = 32;      // bf16 of a tile's row
constexpr int kStepKeys = 128;  // keys of one step

// Packed keys: [16 keys][high, low][32 channels] tiles of [16 channel pairs][16 keys][2].
// Packed values: [32 keys][high, low][16 channels] tiles of [16 pairs: key, key + 16][16 channels][2].
int depth_tiles(int dim) { return (dim + kDepth - 1) / kDepth; }
int channel_tiles(int dim) { return (dim + 15) / 16; }

std::size_t key_group_bytes(int dim) { return std::size_t{2} * depth_tiles(dim) * kTileBytes; }
std::size_t value_group_bytes(int dim) { return std::size_t{2} * channel_tiles(dim) * kTileBytes; }

// Covers both layouts: keys fill depth tiles per 16, values channel tiles per 32.
std::size_t packed_bytes(int tokens, int dim) {
  return std::max(key_group_bytes(dim) * (tokens / 16), value_group_bytes(dim) * (tokens / 32));
}

struct Split {
  std::uint16_t high;
  std::uint16_t low;
};
QEVICT_INLINE Split split(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const std::uint32_t high_bits = (bits + 0x8000u) & 0xffff0000u;  // rounded, so that the rest has either sign
  float high;
  std::memcpy(&high, &high_bits, 4);
  const float rest = x - high;
  std::uint32_t low;
  std::memcpy(&low, &rest, 4);
  return {static_cast<std::uint16_t>(high_bits >> 16), static_cast<std::uint16_t>(low >> 16)};
}

template <class Load>
void pack_key(Load load, int key, int dim, std::byte* packed) {
  std::byte* group = packed + key / 16 * key_group_bytes(dim);
  const std::size_t to_low = key_group_bytes(dim) / 2;
  for (int c = 0; c < dim; ++c) {
    const Split s = split(load(c));
    std::byte* at = group + c / kDepth * kTileBytes + c % kDepth / 2 * 64 + key % 16 * 4 + c % 2 * 2;
    std::memcpy(at, &s.high, 2);
    std::memcpy(at + to_low, &s.low, 2);
  }
}

template <class Load>
void pack_value(Load load, int key, int dim, std::byte* packed) {
  std::byte* group = packed + key / 32 * value_group_bytes(dim);
  const std::size_t to_low = value_group_bytes(dim) / 2;
  for (int c = 0; c < dim; ++c) {
    const Split s = split(load(c));
    std::byte* at = group + c / 16 * kTileBytes + key % 16 * 64 + c % 16 * 4 + key % 32 / 16 * 2;
    std::memcpy(at, &s.high, 2);
    std::memcpy(at + to_low, &s.low, 2);
  }
}

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The compiler does not know that tile loads read memory.
QEVICT_INLINE void stores_done() { asm volatile("" ::: "memory"); }

// 16 query rows (row, group head) of the stripe.
struct RowTile {
  const std::byte* query;  // [high, low][depth] tiles
  float* acc;              // [channel tiles][16][16]
  float* max;              // [16][16 lanes] while the maximum is sought, then [0..15] of each row
  float* sum;              // likewise
  float* weight;           // [16], of the column sums
  int rows;                // used
};

struct Step {
  const std::byte* keys;
  const std::byte* values;
  std::size_t column;  // in the sums
  int n;               // keys, a multiple of kKeyBlock
  int first_key;       // index in the buffer, or -1 for past keys
  int valid;           // keys that exist; the rest is padding
};

// logits[row][key] of 16 rows, row stride kStepKeys.
void tile_logits(const RowTile& tile, const Step& step, int depth, float* logits) {
  const std::size_t low = static_cast<std::size_t>(depth) * kTileBytes;
  const std::size_t group = 2 * low;
  stores_done();
  for (int key = 0; key < step.n; key += 64) {
    const std::byte* k = step.keys + key / 16 * group;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int d = 0; d < depth; ++d, k += kTileBytes) {
      _tile_loadd(4, tile.query + d * kTileBytes, 64);
      _tile_loadd(5, tile.query + low + d * kTileBytes, 64);
// Two sums in turn: a product waits long for its own.
#define QEVICT_KEY_GROUPS(a, b)            \
  _tile_loadd(6, k + (a)*group, 64);       \
  _tile_loadd(7, k + (b)*group, 64);       \
  _tile_dpbf16ps(a, 4, 6);                 \
  _tile_dpbf16ps(b, 4, 7);                 \
  _tile_dpbf16ps(a, 5, 6);                 \
  _tile_dpbf16ps(b, 5, 7);                 \
  _tile_loadd(6, k + (a)*group + low, 64); \
  _tile_loadd(7, k + (b)*group + low, 64); \
  _tile_dpbf16ps(a, 4, 6);                 \
  _tile_dpbf16ps(b, 4, 7);
      QEVICT_KEY_GROUPS(0, 1)
      QEVICT_KEY_GROUPS(2, 3)
#undef QEVICT_KEY_GROUPS
    }
    _tile_stored(0, logits + key, 4 * kStepKeys);
    _tile_stored(1, logits + key + 16, 4 * kStepKeys);
    _tile_stored(2, logits + key + 32, 4 * kStepKeys);
    _tile_stored(3, logits + key + 48, 4 * kStepKeys);
  }
  stores_done();
}

// acc += p * values. p: [n / 32][high, low][16 rows][32 keys].
void tile_values(const RowTile& tile, const Step& step, const std::byte* p, int channels) {
  stores_done();
  const std::size_t low = static_cast<std::size_t>(channels) * kTileBytes;
  for (int c = 0; c < channels; c += 4) {
    float* acc = tile.acc + c * 256;
    const int n = std::min(4, channels - c);
#define QEVICT_EACH_CHANNEL_TILE(F) \
  F(0)                              \
  if (n > 1) F(1) if (n > 2) F(2) if (n > 3) F(3)
#define QEVICT_LOAD(i) \
  { _tile_loadd(i, acc + (i)*256, 64); }
#define QEVICT_MULTIPLY(i)                        \
  {                                               \
    _tile_loadd(6, v + (i)*kTileBytes, 64);       \
    _tile_dpbf16ps(i, 4, 6);                      \
    _tile_dpbf16ps(i, 5, 6);                      \
    _tile_loadd(7, v + (i)*kTileBytes + low, 64); \
    _tile_dpbf16ps(i, 4, 7);                      \
  }
#define QEVICT_STORE(i) \
  { _tile_stored(i, acc + (i)*256, 64); }
    QEVICT_EACH_CHANNEL_TILE(QEVICT_LOAD)
    const std::byte* v = step.values + c * kTileBytes;
    for (int key = 0; key < step.n; key += 32, v += 2 * low) {
      _tile_loadd(4, p + key / 32 * 2 * kTileBytes, 64);
      _tile_loadd(5, p + key / 32 * 2 * kTileBytes + kTileBytes, 64);
      QEVICT_EACH_CHANNEL_TILE(QEVICT_MULTIPLY)
    }
    QEVICT_EACH_CHANNEL_TILE(QEVICT_STORE)
#undef QEVICT_EACH_CHANNEL_TILE
#undef QEVICT_LOAD
#undef QEVICT_MULTIPLY
#undef QEVICT_STORE
  }
  stores_done();
}

}  // namespace
}  // namespace qevict
