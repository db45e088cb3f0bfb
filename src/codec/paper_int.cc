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

  std::vector<std::uint8_t> codes(keys.size());
  std::vector<float> lowest(keys.begin(), keys.begin() + key_dim), highest = lowest;
  for (int t = 1; t < tokens; ++t) {
    const float* row = &keys[static_cast<std::size_t>(t) * key_dim];
    for (int d = 0; d < key_dim; ++d) {
      lowest[d] = std::min(lowest[d], row[d]);
      highest[d] = std::max(highest[d], row[d]);
    }
  }
  std::vector<float>&divisor = highest, &zero = lowest;
  for (int d = 0; d < key_dim; ++d) {
    const MinMaxGroup group = min_max_group(lowest[d], highest[d], layout.bits);
    store_half(record.subspan(layout.key_scales()), layout.key_slot(d), group.scale);
    store_half(record.subspan(layout.key_zeros()), layout.key_slot(d), group.zero);
    divisor[d] = min_max_divisor(to_float(group.scale));
    zero[d] = to_float(group.zero);
  }
  for (int t = 0; t < tokens; ++t) {
    const std::size_t at = static_cast<std::size_t>(t) * key_dim;
    const float* row = &keys[at];
    for (int d = 0; d < key_dim; ++d) codes[at + d] = min_max_code(row[d], divisor[d], zero[d], layout.bits);
  }
  pack_keys(layout.keys(), codes, record.subspan(layout.key_codes(), layout.keys().bytes()));

  codes.resize(values.size());
  for (int t = 0; t < tokens; ++t) {
    const std::size_t at = static_cast<std::size_t>(t) * value_dim;
    const auto row = values.subspan(at, value_dim);
    const auto [low, high] = min_max(row);
    const MinMaxGroup group = min_max_group(low, high, layout.bits);
    store_half(record.subspan(layout.value_scales()), t, group.scale);
    store_half(record.subspan(layout.value_zeros()), t, group.zero);
    const float row_divisor = min_max_divisor(to_float(group.scale)), row_zero = to_float(group.zero);
    for (int d = 0; d < value_dim; ++d) codes[at + d] = min_max_code(row[d], row_divisor, row_zero, layout.bits);
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
bool PaperInt<kBits>::encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                             std::span<const std::byte>, std::span<std::byte> record) {
  return encode_window({shape, kBits}, keys, values, record);
}

template <int kBits>
void PaperInt<kBits>::decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte>,
                             std::span<float> keys, std::span<float> values) {
  decode_window({shape, kBits}, record, keys, values);
}

template <int kBits>
void PaperInt<kBits>::cut(WindowShape shape, std::span<const std::byte> record, int first_token,
                          std::span<std::byte> part) {
  const PaperIntLayout from{shape, kBits}, to{{kBlockTokens, shape.key_dim, shape.value_dim}, kBits};
  QEVICT_CHECK(record.size() == from.bytes() && part.size() == to.bytes(), "records of window_bytes");
  QEVICT_CHECK(first_token % kBlockTokens == 0 && first_token + kBlockTokens <= shape.tokens, "a whole block");
  const auto copy = [&](std::size_t at, std::size_t bytes, std::size_t to_at) {
    std::ranges::copy(record.subspan(at, bytes), part.begin() + static_cast<std::ptrdiff_t>(to_at));
  };
  const auto block = static_cast<std::size_t>(first_token / kBlockTokens),
             token = static_cast<std::size_t>(first_token);
  copy(from.key_codes() + block * to.keys().bytes(), to.keys().bytes(), to.key_codes());
  copy(from.key_scales(), to.value_codes() - to.key_scales(), to.key_scales());  // and zeros: the whole window's
  copy(from.value_codes() + block * to.values().bytes(), to.values().bytes(), to.value_codes());
  copy(from.value_scales() + 2 * token, 2 * kBlockTokens, to.value_scales());
  copy(from.value_zeros() + 2 * token, 2 * kBlockTokens, to.value_zeros());
}

template struct PaperInt<2>;
template struct PaperInt<4>;

}  // namespace qevict
