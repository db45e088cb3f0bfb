#include "codec/kxvy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "codec/hadamard.h"
#include "codec/lloyd_max.h"
#include "codec/scale8.h"
#include "codec/token_block.h"

namespace qevict {
namespace {

using Floats = std::vector<float>;
using Codes = std::vector<std::uint8_t>;

// Tokens of zeros that the mean of values counts beside those at hand.
constexpr double kValueMeanPrior = 32;

struct HeadParams {  // as stored
  Floats key_mean, key_deviation, value_mean;
};

Floats load_halves(std::span<const std::byte> part, int n) {
  Floats values(n);
  for (int i = 0; i < n; ++i) values[i] = to_float(load_half(part, i));
  return values;
}

HeadParams load_head(const KxvyLayout& layout, std::span<const std::byte> head) {
  QEVICT_CHECK(head.size() == layout.head_bytes(), "the head's frozen parameters");
  return {load_halves(head.subspan(layout.key_means()), layout.shape.key_dim),
          load_halves(head.subspan(layout.key_deviations()), layout.shape.key_dim),
          load_halves(head.subspan(layout.value_means()), layout.shape.value_dim)};
}

struct Moments {
  double mean = 0.0;
  double deviation = 0.0;  // of the population
};

// Of one channel of rows[n][dim].
Moments moments_of(std::span<const float> rows, int dim, int channel) {
  const double n = static_cast<double>(rows.size() / dim);
  double sum = 0.0, squares = 0.0;
  for (std::size_t i = channel; i < rows.size(); i += dim) sum += rows[i];
  const double mean = sum / n;
  for (std::size_t i = channel; i < rows.size(); i += dim) squares += (rows[i] - mean) * (rows[i] - mean);
  return {mean, std::sqrt(squares / n)};
}

void check_shape(WindowShape shape) {
  QEVICT_CHECK(shape.tokens > 0 && shape.tokens % 4 == 0, "kXvY takes windows of a multiple of 4 tokens");
  QEVICT_CHECK(shape.key_dim > 0 && shape.key_dim % 2 == 0, "kXvY takes even dims");
  QEVICT_CHECK(shape.value_dim > 0 && shape.value_dim % 2 == 0, "kXvY takes even dims");
}

void check_window(const KxvyLayout& layout, std::size_t n_keys, std::size_t n_values, std::size_t record_bytes) {
  check_shape(layout.shape);
  QEVICT_CHECK(n_keys == static_cast<std::size_t>(layout.shape.tokens) * layout.shape.key_dim,
               "the keys of one window");
  QEVICT_CHECK(n_values == static_cast<std::size_t>(layout.shape.tokens) * layout.shape.value_dim,
               "the values of one window");
  QEVICT_CHECK(record_bytes == layout.bytes(), "a record of window_bytes");
}

void estimate(const KxvyLayout& layout, std::span<const float> keys, std::span<const float> values,
              std::span<std::byte> head) {
  const auto [tokens, key_dim, value_dim] = layout.shape;
  check_shape(layout.shape);
  QEVICT_CHECK(!keys.empty() && keys.size() % key_dim == 0, "at least one key");
  QEVICT_CHECK(keys.size() / key_dim == values.size() / value_dim && values.size() % value_dim == 0, "a value per key");
  QEVICT_CHECK(head.size() == layout.head_bytes(), "the head's frozen parameters");
  for (int d = 0; d < key_dim; ++d) {
    const Moments moments = moments_of(keys, key_dim, d);
    store_half(head.subspan(layout.key_means()), d, to_half_saturated(static_cast<float>(moments.mean)));
    store_half(head.subspan(layout.key_deviations()), d, to_half_saturated(static_cast<float>(moments.deviation)));
  }
  const auto n = static_cast<double>(keys.size() / key_dim);
  for (int d = 0; d < value_dim; ++d) {
    const double mean = moments_of(values, value_dim, d).mean * n / (n + kValueMeanPrior);
    store_half(head.subspan(layout.value_means()), d, to_half_saturated(static_cast<float>(mean)));
  }
}

bool encode_window(const KxvyLayout& layout, std::span<const float> keys, std::span<const float> values,
                   std::span<const std::byte> head, std::span<std::byte> record) {
  check_window(layout, keys.size(), values.size(), record.size());
  const auto [tokens, key_dim, value_dim] = layout.shape;
  const HeadParams params = load_head(layout, head);
  if (!all_finite(keys) || !all_finite(values)) return false;
  if (!all_finite(params.key_mean) || !all_finite(params.key_deviation) || !all_finite(params.value_mean)) return false;

  Codes excluded(key_dim), codes;
  for (int d = 0; d < key_dim; ++d) excluded[d] = params.key_deviation[d] == 0.0f;
  // A key that is finite over infinity is 0: so are the channels that take part in nothing.
  Floats divisor = params.key_deviation;
  for (float& x : divisor)
    if (x == 0.0f) x = std::numeric_limits<float>::infinity();
  const std::span<const float> signs = rotation_signs(value_dim);
  Floats rows;
  TokenBlock block;
  for (int begin = 0; begin < tokens; begin += kBlockTokens) {
    const int n = std::min(kBlockTokens, tokens - begin);
    const auto out = record.subspan(layout.block_at(begin), layout.block_bytes(n));
    const auto part = [&](std::span<const float> given, int dim) {
      return given.subspan(static_cast<std::size_t>(begin) * dim, static_cast<std::size_t>(n) * dim);
    };

    rows.assign(part(keys, key_dim).begin(), part(keys, key_dim).end());
    for (int t = 0; t < n; ++t) {
      float* row = &rows[static_cast<std::size_t>(t) * key_dim];
      for (int d = 0; d < key_dim; ++d) row[d] = (row[d] - params.key_mean[d]) / divisor[d];
    }
    if (!all_finite(rows)) return false;
    block.dim = key_dim;
    load_rows(rows, n, block);
    codes.resize(rows.size());
    encode_rows(block, excluded, layout.key_bits, ScaleRule::least_squares, n, codes,
                out.subspan(layout.key_scales(n), n));
    pack_keys(layout.keys(n), codes, out.subspan(layout.key_codes(), layout.keys(n).bytes()));

    rows.assign(part(values, value_dim).begin(), part(values, value_dim).end());
    for (int t = 0; t < n; ++t)
      for (int d = 0; d < value_dim; ++d) rows[static_cast<std::size_t>(t) * value_dim + d] -= params.value_mean[d];
    block.dim = value_dim;
    load_rows(rows, n, block);
    rotate_rows(block, signs);
    if (!all_finite(block.rows)) return false;
    codes.resize(rows.size());
    encode_rows(block, {}, layout.value_bits, ScaleRule::midway, n, codes, out.subspan(layout.value_scales(n), n));
    pack_values(layout.values(n), codes, out.subspan(layout.value_codes(n), layout.values(n).bytes()));
  }
  return true;
}

void decode_window(const KxvyLayout& layout, std::span<const std::byte> record, std::span<const std::byte> head,
                   std::span<float> keys, std::span<float> values) {
  check_window(layout, keys.size(), values.size(), record.size());
  const auto [tokens, key_dim, value_dim] = layout.shape;
  const HeadParams params = load_head(layout, head);
  const auto key_levels = lloyd_max_levels(layout.key_bits), value_levels = lloyd_max_levels(layout.value_bits);
  const std::span<const float> signs = rotation_signs(value_dim);
  Codes codes;
  for (int begin = 0; begin < tokens; begin += kBlockTokens) {
    const int n = std::min(kBlockTokens, tokens - begin);
    const auto block = record.subspan(layout.block_at(begin), layout.block_bytes(n));

    codes.resize(static_cast<std::size_t>(n) * key_dim);
    unpack_keys(layout.keys(n), block.subspan(layout.key_codes(), layout.keys(n).bytes()), codes);
    for (int t = 0; t < n; ++t) {
      const float scale = scale8_value(std::to_integer<std::uint8_t>(block[layout.key_scales(n) + t]));
      const auto key = keys.subspan(static_cast<std::size_t>(begin + t) * key_dim, key_dim);
      for (int d = 0; d < key_dim; ++d)
        key[d] = params.key_mean[d] + params.key_deviation[d] * scale * key_levels[codes[t * key_dim + d]];
    }

    codes.resize(static_cast<std::size_t>(n) * value_dim);
    unpack_values(layout.values(n), block.subspan(layout.value_codes(n), layout.values(n).bytes()), codes);
    for (int t = 0; t < n; ++t) {
      const float scale = scale8_value(std::to_integer<std::uint8_t>(block[layout.value_scales(n) + t]));
      const auto value = values.subspan(static_cast<std::size_t>(begin + t) * value_dim, value_dim);
      for (int d = 0; d < value_dim; ++d) value[d] = scale * value_levels[codes[t * value_dim + d]];
      unrotate_values(value, signs);
      for (int d = 0; d < value_dim; ++d) value[d] += params.value_mean[d];
    }
  }
}

}  // namespace

// Sums are of products that a double holds exactly, so that a compiler's fused operations cannot change a code.
std::uint8_t encode_token(std::span<const float> row, std::span<const std::uint8_t> excluded, int bits, ScaleRule rule,
                          std::span<std::uint8_t> codes) {
  const auto levels = lloyd_max_levels(bits), boundaries = lloyd_max_boundaries(bits);
  double squares = 0.0;
  int n = 0;
  for (std::size_t d = 0; d < row.size(); ++d) {
    if (!excluded.empty() && excluded[d] != 0) continue;
    squares += static_cast<double>(row[d]) * row[d];
    ++n;
  }
  if (squares == 0.0) {
    std::ranges::fill(codes, static_cast<std::uint8_t>(1 << (bits - 1)));
    return 0;
  }
  const double rms = std::sqrt(squares / n);
  double row_level = 0.0, level_level = 0.0;
  for (std::size_t d = 0; d < row.size(); ++d) {
    if (!excluded.empty() && excluded[d] != 0) {
      codes[d] = static_cast<std::uint8_t>(1 << (bits - 1));
      continue;
    }
    codes[d] = lloyd_max_code(boundaries, static_cast<float>(row[d] / rms));
    const double level = levels[codes[d]];
    row_level += row[d] * level;
    level_level += level * level;
  }
  return scale8_of(token_scale(rule, squares, row_level, level_level));
}

template <int kKeyBits, int kValueBits>
bool Kxvy<kKeyBits, kValueBits>::supports(WindowShape shape) {
  return shape.tokens > 0 && shape.tokens % 4 == 0 && shape.key_dim > 0 && shape.key_dim % 2 == 0 &&
         shape.value_dim > 0 && shape.value_dim % 2 == 0 && shape.value_dim <= 1024;
}

template <int kKeyBits, int kValueBits>
std::size_t Kxvy<kKeyBits, kValueBits>::window_bytes(WindowShape shape) {
  return KxvyLayout{shape, kKeyBits, kValueBits}.bytes();
}

template <int kKeyBits, int kValueBits>
std::size_t Kxvy<kKeyBits, kValueBits>::head_bytes(WindowShape shape) {
  return KxvyLayout{shape, kKeyBits, kValueBits}.head_bytes();
}

template <int kKeyBits, int kValueBits>
void Kxvy<kKeyBits, kValueBits>::estimate_head(WindowShape shape, std::span<const float> keys,
                                               std::span<const float> values, std::span<std::byte> head) {
  estimate({shape, kKeyBits, kValueBits}, keys, values, head);
}

template <int kKeyBits, int kValueBits>
bool Kxvy<kKeyBits, kValueBits>::encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                                        std::span<const std::byte> head, std::span<std::byte> record) {
  return encode_window({shape, kKeyBits, kValueBits}, keys, values, head, record);
}

template <int kKeyBits, int kValueBits>
void Kxvy<kKeyBits, kValueBits>::decode(WindowShape shape, std::span<const std::byte> record,
                                        std::span<const std::byte> head, std::span<float> keys,
                                        std::span<float> values) {
  decode_window({shape, kKeyBits, kValueBits}, record, head, keys, values);
}

template <int kKeyBits, int kValueBits>
void Kxvy<kKeyBits, kValueBits>::cut(WindowShape shape, std::span<const std::byte> record, int first_token,
                                     std::span<std::byte> part) {
  const KxvyLayout layout{shape, kKeyBits, kValueBits};
  QEVICT_CHECK(record.size() == layout.bytes() && part.size() == layout.block_bytes(kBlockTokens),
               "records of window_bytes");
  QEVICT_CHECK(first_token % kBlockTokens == 0 && first_token + kBlockTokens <= shape.tokens, "a whole block");
  std::ranges::copy(record.subspan(layout.block_at(first_token), part.size()), part.begin());
}

template struct Kxvy<2, 2>;
template struct Kxvy<2, 3>;
template struct Kxvy<2, 4>;
template struct Kxvy<3, 2>;
template struct Kxvy<3, 3>;
template struct Kxvy<3, 4>;
template struct Kxvy<4, 2>;
template struct Kxvy<4, 3>;
template struct Kxvy<4, 4>;

}  // namespace qevict
