#include "codec/kivi.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "codec/min_max.h"
#include "codec/record.h"

namespace qevict {
namespace {

void check_window(const KiviLayout& layout, std::size_t n_keys, std::size_t n_values, std::size_t record_bytes) {
  const auto [tokens, key_dim, value_dim] = layout.shape;
  QEVICT_CHECK(tokens > 0 && tokens % kKiviGroup == 0, "KIVI takes windows of a multiple of 32 tokens");
  QEVICT_CHECK(key_dim > 0 && key_dim % kKiviGroup == 0 && value_dim > 0 && value_dim % kKiviGroup == 0,
               "KIVI takes head sizes that are multiples of 32");
  QEVICT_CHECK(n_keys == static_cast<std::size_t>(tokens) * key_dim, "the keys of one window");
  QEVICT_CHECK(n_values == static_cast<std::size_t>(tokens) * value_dim, "the values of one window");
  QEVICT_CHECK(record_bytes == layout.bytes(), "a record of window_bytes");
}

// keys: [32][key_dim]
void encode_keys(const KiviLayout& layout, std::span<const float> keys, std::span<std::byte> group) {
  const int dim = layout.shape.key_dim, bits = layout.bits, per_byte = 8 / bits;
  std::vector<float> lowest(keys.begin(), keys.begin() + dim), highest = lowest;
  for (int t = 1; t < kKiviGroup; ++t)
    for (int c = 0; c < dim; ++c) {
      lowest[c] = std::min(lowest[c], keys[t * dim + c]);
      highest[c] = std::max(highest[c], keys[t * dim + c]);
    }
  std::vector<float>&divisor = highest, &zero = lowest;
  for (int c = 0; c < dim; ++c) {
    const MinMaxGroup params = min_max_group(lowest[c], highest[c], bits);
    store_half(group.subspan(layout.key_scales()), c, params.scale);
    store_half(group.subspan(layout.key_zeros()), c, params.zero);
    divisor[c] = min_max_divisor(to_float(params.scale));
    zero[c] = to_float(params.zero);
  }
  std::ranges::fill(group.subspan(layout.key_codes(), layout.code_bytes(dim)), std::byte{0});
  for (int t = 0; t < kKiviGroup; ++t) {
    std::byte* out = &group[layout.key_codes() + t / per_byte * dim];
    const float* key = &keys[t * dim];
    const int shift = t % per_byte * bits;
    for (int c = 0; c < dim; ++c)
      out[c] |= static_cast<std::byte>(min_max_code(key[c], divisor[c], zero[c], bits) << shift);
  }
}

void decode_keys(const KiviLayout& layout, std::span<const std::byte> group, std::span<float> keys) {
  const int dim = layout.shape.key_dim, bits = layout.bits, per_byte = 8 / bits;
  std::vector<float> scale(dim), zero(dim);
  for (int c = 0; c < dim; ++c) {
    scale[c] = to_float(load_half(group.subspan(layout.key_scales()), c));
    zero[c] = to_float(load_half(group.subspan(layout.key_zeros()), c));
  }
  for (int t = 0; t < kKiviGroup; ++t) {
    const std::byte* codes = &group[layout.key_codes() + t / per_byte * dim];
    const int shift = t % per_byte * bits, mask = (1 << bits) - 1;
    for (int c = 0; c < dim; ++c)
      keys[t * dim + c] = zero[c] + static_cast<float>(std::to_integer<int>(codes[c]) >> shift & mask) * scale[c];
  }
}

// values: [32][value_dim]
void encode_values(const KiviLayout& layout, std::span<const float> values, std::span<std::byte> group) {
  const int bits = layout.bits, bytes = kKiviGroup * bits / 8, n = layout.shape.value_dim;  // groups in all
  for (int g = 0; g < n; ++g) {
    const auto x = values.subspan(g * kKiviGroup, kKiviGroup);
    const auto [lowest, highest] = min_max(x);
    const MinMaxGroup params = min_max_group(lowest, highest, bits);
    store_half(group.subspan(layout.value_scales()), g, params.scale);
    store_half(group.subspan(layout.value_zeros()), g, params.zero);
    const float divisor = min_max_divisor(to_float(params.scale)), zero = to_float(params.zero);
    for (int i = 0; i < bytes; ++i) {
      unsigned byte = 0;
      for (int k = 0; k < 8 / bits; ++k)
        byte |= static_cast<unsigned>(min_max_code(x[i + bytes * k], divisor, zero, bits)) << k * bits;
      group[layout.value_codes() + g * bytes + i] = static_cast<std::byte>(byte);
    }
  }
}

void decode_values(const KiviLayout& layout, std::span<const std::byte> group, std::span<float> values) {
  const int bits = layout.bits, bytes = kKiviGroup * bits / 8, n = layout.shape.value_dim;
  const int mask = (1 << bits) - 1;
  for (int g = 0; g < n; ++g) {
    const float scale = to_float(load_half(group.subspan(layout.value_scales()), g));
    const float zero = to_float(load_half(group.subspan(layout.value_zeros()), g));
    const std::byte* codes = &group[layout.value_codes() + g * bytes];
    float* x = &values[g * kKiviGroup];
    for (int k = 0; k < 8 / bits; ++k, x += bytes)
      for (int i = 0; i < bytes; ++i)
        x[i] = zero + static_cast<float>(std::to_integer<int>(codes[i]) >> k * bits & mask) * scale;
  }
}

}  // namespace

template <int kBits>
bool Kivi<kBits>::supports(WindowShape shape) {
  return shape.tokens > 0 && shape.tokens % kKiviGroup == 0 && shape.key_dim > 0 && shape.key_dim % kKiviGroup == 0 &&
         shape.value_dim > 0 && shape.value_dim % kKiviGroup == 0;
}

template <int kBits>
std::size_t Kivi<kBits>::window_bytes(WindowShape shape) {
  return KiviLayout{shape, kBits}.bytes();
}

template <int kBits>
bool Kivi<kBits>::encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                         std::span<const std::byte>, std::span<std::byte> record) {
  const KiviLayout layout{shape, kBits};
  check_window(layout, keys.size(), values.size(), record.size());
  if (!all_finite(keys) || !all_finite(values)) return false;
  const std::size_t key_floats = static_cast<std::size_t>(kKiviGroup) * shape.key_dim;
  const std::size_t value_floats = static_cast<std::size_t>(kKiviGroup) * shape.value_dim;
  for (int g = 0; g < shape.tokens / kKiviGroup; ++g) {
    const auto group = record.subspan(g * layout.group_bytes(), layout.group_bytes());
    encode_keys(layout, keys.subspan(g * key_floats, key_floats), group);
    encode_values(layout, values.subspan(g * value_floats, value_floats), group);
  }
  return true;
}

template <int kBits>
void Kivi<kBits>::decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte>,
                         std::span<float> keys, std::span<float> values) {
  const KiviLayout layout{shape, kBits};
  check_window(layout, keys.size(), values.size(), record.size());
  const std::size_t key_floats = static_cast<std::size_t>(kKiviGroup) * shape.key_dim;
  const std::size_t value_floats = static_cast<std::size_t>(kKiviGroup) * shape.value_dim;
  for (int g = 0; g < shape.tokens / kKiviGroup; ++g) {
    const auto group = record.subspan(g * layout.group_bytes(), layout.group_bytes());
    decode_keys(layout, group, keys.subspan(g * key_floats, key_floats));
    decode_values(layout, group, values.subspan(g * value_floats, value_floats));
  }
}

template struct Kivi<2>;
template struct Kivi<4>;

}  // namespace qevict
