#include "codec/paper_int.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "codec/min_max.h"

namespace qevict {
namespace {

void check_window(const PaperIntLayout& layout, std::size_t n_keys, std::size_t n_values, std::size_t record_bytes) {
  const auto [tokens, key_dim, value_dim] = layout.shape;
  QEVICT_CHECK(tokens > 0 && tokens % 4 == 0, "int codecs take windows of a multiple of 4 tokens");
  QEVICT_CHECK(key_dim > 0 && key_dim % 2 == 0 && value_dim > 0 && value_dim % 2 == 0, "int codecs take even dims");
  QEVICT_CHECK(n_keys == static_cast<std::size_t>(tokens) * key_dim, "the keys of one window");
  QEVICT_CHECK(n_values == static_cast<std::size_t>(tokens) * value_dim, "the values of one window");
  QEVICT_CHECK(record_bytes == layout.bytes(), "a record of window_bytes");
}

bool encode_window(const PaperIntLayout& layout, std::span<const float> keys, std::span<const float> values,
                   std::span<std::byte> record) {
  check_window(layout, keys.size(), values.size(), record.size());
  if (!all_finite(keys) || !all_finite(values)) return false;
  const auto [tokens, key_dim, value_dim] = layout.shape;

  // Channels innermost, so that the compiler makes vectors of them.
  std::vector<std::uint8_t> codes(keys.size());
  std::vector<float> lows(keys.begin(), keys.begin() + key_dim), highs(lows), divisors(lows), zeros(lows);
  for (int t = 1; t < tokens; ++t) {
    const float* row = keys.data() + static_cast<std::size_t>(t) * key_dim;
    for (int d = 0; d < key_dim; ++d) {
      lows[d] = std::min(lows[d], row[d]);
      highs[d] = std::max(highs[d], row[d]);
    }
  }
  for (int d = 0; d < key_dim; ++d) {
    const MinMaxGroup group = min_max_group(lows[d], highs[d], layout.bits);
    store_half(record.subspan(layout.key_scales()), layout.key_slot(d), group.scale);
    store_half(record.subspan(layout.key_zeros()), layout.key_slot(d), group.zero);
    divisors[d] = min_max_divisor(group.scale);
    zeros[d] = to_float(group.zero);
  }
  for (int t = 0; t < tokens; ++t) {
    const float* row = keys.data() + static_cast<std::size_t>(t) * key_dim;
    std::uint8_t* out = codes.data() + static_cast<std::size_t>(t) * key_dim;
    for (int d = 0; d < key_dim; ++d) out[d] = min_max_code(row[d], divisors[d], zeros[d], layout.bits);
  }
  pack_keys(layout.keys(), codes, record.subspan(layout.key_codes(), layout.keys().bytes()));

  codes.resize(values.size());
  for (int t = 0; t < tokens; ++t) {
    const auto row = values.subspan(static_cast<std::size_t>(t) * value_dim, value_dim);
    const auto [lowest, highest] = std::ranges::minmax(row);
    const MinMaxGroup group = min_max_group(lowest, highest, layout.bits);
    store_half(record.subspan(layout.value_scales()), t, group.scale);
    store_half(record.subspan(layout.value_zeros()), t, group.zero);
    const float divisor = min_max_divisor(group.scale), zero = to_float(group.zero);
    for (int d = 0; d < value_dim; ++d) codes[t * value_dim + d] = min_max_code(row[d], divisor, zero, layout.bits);
  }
  pack_values(layout.values(), codes, record.subspan(layout.value_codes(), layout.values().bytes()));
  return true;
}

void decode_window(const PaperIntLayout& layout, std::span<const std::byte> record, std::span<float> keys,
                   std::span<float> values) {
  check_window(layout, keys.size(), values.size(), record.size());
  const auto [tokens, key_dim, value_dim] = layout.shape;

  std::vector<std::uint8_t> codes(keys.size());
  unpack_keys(layout.keys(), record.subspan(layout.key_codes(), layout.keys().bytes()), codes);
  for (int d = 0; d < key_dim; ++d) {
    const float scale = to_float(load_half(record.subspan(layout.key_scales()), layout.key_slot(d)));
    const float zero = to_float(load_half(record.subspan(layout.key_zeros()), layout.key_slot(d)));
    for (int t = 0; t < tokens; ++t) keys[t * key_dim + d] = zero + static_cast<float>(codes[t * key_dim + d]) * scale;
  }

  codes.resize(values.size());
  unpack_values(layout.values(), record.subspan(layout.value_codes(), layout.values().bytes()), codes);
  for (int t = 0; t < tokens; ++t) {
    const float scale = to_float(load_half(record.subspan(layout.value_scales()), t));
    const float zero = to_float(load_half(record.subspan(layout.value_zeros()), t));
    for (int d = 0; d < value_dim; ++d)
      values[t * value_dim + d] = zero + static_cast<float>(codes[t * value_dim + d]) * scale;
  }
}

}  // namespace

template <int kBits>
bool PaperInt<kBits>::supports(WindowShape shape) {
  return shape.tokens > 0 && shape.tokens % 4 == 0 && shape.key_dim > 0 && shape.key_dim % 2 == 0 &&
         shape.value_dim > 0 && shape.value_dim % 2 == 0;
}

template <int kBits>
std::size_t PaperInt<kBits>::window_bytes(WindowShape shape) {
  return PaperIntLayout{shape, kBits}.bytes();
}

template <int kBits>
std::size_t PaperInt<kBits>::head_bytes(WindowShape) {
  return 0;
}

template <int kBits>
bool PaperInt<kBits>::encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                             std::span<const std::byte>, std::span<std::byte> record) {
  return encode_window({shape, kBits}, keys, values, record);
}

template <int kBits>
void PaperInt<kBits>::decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte>,
                             std::span<float> keys, std::span<float> values) {
  decode_window({shape, kBits}, record, keys, values);
}

template struct PaperInt<2>;
template struct PaperInt<4>;

}  // namespace qevict
