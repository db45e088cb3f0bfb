#include "codec/zip.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include "base/check.h"
#include "base/rng.h"
#include "codec/min_max.h"
#include "codec/record.h"

namespace qevict {
namespace {

using Floats = std::vector<float>;
using Classes = std::vector<std::uint8_t>;  // [tokens], 1 = salient

void check_window(const ZipLayout& layout, std::size_t n_keys, std::size_t n_values, std::size_t record_bytes) {
  QEVICT_CHECK(Zip::supports(layout.shape), "a window that zip takes");
  QEVICT_CHECK(n_keys == layout.tokens() * layout.key_dim(), "the keys of one window");
  QEVICT_CHECK(n_values == layout.tokens() * layout.value_dim(), "the values of one window");
  QEVICT_CHECK(record_bytes == layout.bytes(), "a record of window_bytes");
}

Floats value_lengths(const ZipLayout& layout, std::span<const float> values) {
  Floats lengths;
  for (std::size_t t = 0; t < layout.tokens(); ++t) {
    double squares = 0;
    for (const float x : values.subspan(t * layout.value_dim(), layout.value_dim()))
      squares += static_cast<double>(x) * x;
    lengths.push_back(static_cast<float>(squares));
  }
  return lengths;
}

Classes classes_of(const ZipLayout& layout, std::span<const float> scores) {
  std::vector<std::size_t> order(layout.tokens());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
  Classes classes(layout.tokens(), 1);
  for (std::size_t i = 0; i < layout.class_tokens(0); ++i) classes[order[i]] = 0;
  return classes;
}

void pack(int salient, std::span<const std::uint8_t> codes, std::span<std::byte> row) {
  salient ? pack_bit_row<4>(codes, row) : pack_bit_row<2>(codes, row);
}

void unpack(int salient, std::span<const std::byte> row, std::span<float> codes) {
  const auto number = [](std::uint32_t code) { return static_cast<float>(static_cast<std::int32_t>(code)); };
  salient ? unpack_bit_row<4>(row, codes, number) : unpack_bit_row<2>(row, codes, number);
}

// Keys of one class.
void encode_keys(const ZipLayout& layout, std::span<const float> keys, const Classes& classes, int salient,
                 std::span<std::byte> record) {
  const std::size_t dim = layout.key_dim();
  const int bits = ZipLayout::bits(salient);
  std::vector<std::span<const float>> rows;
  for (std::size_t t = 0; t < layout.tokens(); ++t)
    if (classes[t] == salient) rows.push_back(keys.subspan(t * dim, dim));
  Floats lowest(rows.front().begin(), rows.front().end()), highest = lowest;
  for (const auto& row : rows)
    for (std::size_t c = 0; c < dim; ++c) {
      lowest[c] = std::min(lowest[c], row[c]);
      highest[c] = std::max(highest[c], row[c]);
    }
  Floats &divisor = highest, &zero = lowest;
  for (std::size_t c = 0; c < dim; ++c) {
    const MinMaxGroup params = min_max_group(lowest[c], highest[c], bits);
    store_half(record.subspan(layout.key_scales(salient)), static_cast<int>(c), params.scale);
    store_half(record.subspan(layout.key_zeros(salient)), static_cast<int>(c), params.zero);
    divisor[c] = min_max_divisor(to_float(params.scale));
    zero[c] = to_float(params.zero);
  }
  const std::size_t row_bytes = bit_row_bytes(layout.shape.key_dim, bits);
  std::vector<std::uint8_t> codes(dim);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t c = 0; c < dim; ++c) codes[c] = min_max_code(rows[i][c], divisor[c], zero[c], bits);
    pack(salient, codes, record.subspan(layout.key_codes(salient) + i * row_bytes, row_bytes));
  }
}

void encode_values(const ZipLayout& layout, std::span<const float> values, const Classes& classes,
                   std::span<std::byte> record) {
  const std::size_t dim = layout.value_dim();
  Floats divisor(dim);
  for (std::size_t i = 0; i < values.size(); ++i) divisor[i % dim] = std::max(divisor[i % dim], std::abs(values[i]));
  for (std::size_t c = 0; c < dim; ++c) {
    const Half stored = to_half_saturated(std::sqrt(divisor[c]));
    store_half(record.subspan(layout.channels()), static_cast<int>(c), stored);
    divisor[c] = min_max_divisor(to_float(stored));
  }
  Floats row(dim);
  std::vector<std::uint8_t> codes(dim);
  std::size_t at[2] = {layout.value_codes(0), layout.value_codes(1)};
  for (std::size_t t = 0; t < layout.tokens(); ++t) {
    const int bits = ZipLayout::bits(classes[t]);
    for (std::size_t c = 0; c < dim; ++c) row[c] = values[t * dim + c] / divisor[c];
    const auto [lowest, highest] = min_max(row);
    const MinMaxGroup params = min_max_group(lowest, highest, bits);
    store_half(record.subspan(layout.value_scales()), static_cast<int>(t), params.scale);
    store_half(record.subspan(layout.value_zeros()), static_cast<int>(t), params.zero);
    for (std::size_t c = 0; c < dim; ++c)
      codes[c] = min_max_code(row[c], min_max_divisor(to_float(params.scale)), to_float(params.zero), bits);
    const std::size_t row_bytes = bit_row_bytes(layout.shape.value_dim, bits);
    pack(classes[t], codes, record.subspan(at[classes[t]], row_bytes));
    at[classes[t]] += row_bytes;
  }
}

}  // namespace

bool Zip::supports(WindowShape shape) {
  const auto dim_fits = [](int dim) { return dim > 0 && dim % 8 == 0 && dim <= kZipLargestDim; };
  return shape.tokens > 0 && shape.tokens % 5 == 0 && dim_fits(shape.key_dim) && dim_fits(shape.value_dim);
}

std::size_t Zip::window_bytes(WindowShape shape) { return ZipLayout{shape}.bytes(); }

bool Zip::encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                 std::span<const std::byte> head, std::span<std::byte> record) {
  return encode_with(shape, keys, values, {}, head, record);
}

bool Zip::encode_with(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                      const TokenSide& side, std::span<const std::byte>, std::span<std::byte> record) {
  const ZipLayout layout{shape};
  check_window(layout, keys.size(), values.size(), record.size());
  QEVICT_CHECK(side.scores.empty() || side.scores.size() == layout.tokens(), "a score for each token");
  if (!all_finite(keys) || !all_finite(values) || !all_finite(side.scores)) return false;
  const Classes classes = classes_of(
      layout, side.scores.empty() ? value_lengths(layout, values) : Floats(side.scores.begin(), side.scores.end()));
  std::ranges::fill(record.subspan(layout.classes(), layout.key_scales(1)), std::byte{0});
  for (std::size_t t = 0; t < layout.tokens(); ++t)
    record[layout.classes() + t / 8] |= static_cast<std::byte>(classes[t] << t % 8);
  for (const int salient : {1, 0}) encode_keys(layout, keys, classes, salient, record);
  encode_values(layout, values, classes, record);
  return true;
}

void Zip::decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte>,
                 std::span<float> keys, std::span<float> values) {
  const ZipLayout layout{shape};
  check_window(layout, keys.size(), values.size(), record.size());
  const std::size_t key_dim = layout.key_dim(), value_dim = layout.value_dim();
  std::array<float, kZipLargestDim> scales[2], zeros[2], channels;
  for (const int salient : {0, 1})
    for (int c = 0; c < shape.key_dim; ++c) {
      scales[salient][c] = to_float(load_half(record.subspan(layout.key_scales(salient)), c));
      zeros[salient][c] = to_float(load_half(record.subspan(layout.key_zeros(salient)), c));
    }
  for (int c = 0; c < shape.value_dim; ++c) channels[c] = to_float(load_half(record.subspan(layout.channels()), c));
  std::size_t done[2] = {0, 0};
  for (std::size_t t = 0; t < layout.tokens(); ++t) {
    // Never reads outside, whatever the bits say.
    int salient = std::to_integer<int>(record[layout.classes() + t / 8]) >> t % 8 & 1;
    if (done[salient] == layout.class_tokens(salient)) salient = 1 - salient;
    const std::size_t i = done[salient]++;
    const int bits = ZipLayout::bits(salient);

    const auto key = keys.subspan(t * key_dim, key_dim);
    const std::size_t key_bytes = bit_row_bytes(shape.key_dim, bits);
    unpack(salient, record.subspan(layout.key_codes(salient) + i * key_bytes, key_bytes), key);
    for (std::size_t c = 0; c < key_dim; ++c) key[c] = zeros[salient][c] + key[c] * scales[salient][c];

    const auto value = values.subspan(t * value_dim, value_dim);
    const float scale = to_float(load_half(record.subspan(layout.value_scales()), static_cast<int>(t)));
    const float zero = to_float(load_half(record.subspan(layout.value_zeros()), static_cast<int>(t)));
    const std::size_t value_bytes = bit_row_bytes(shape.value_dim, bits);
    unpack(salient, record.subspan(layout.value_codes(salient) + i * value_bytes, value_bytes), value);
    for (std::size_t c = 0; c < value_dim; ++c) value[c] = (zero + value[c] * scale) * channels[c];
  }
}

std::vector<int> zip_probes(int n_tokens, std::uint64_t seed) {
  QEVICT_CHECK(n_tokens >= 1, "a prompt");
  const int last = std::max(1, n_tokens / 20), others = n_tokens - last;
  std::set<int> probes;
  for (int i = others; i < n_tokens; ++i) probes.insert(i);
  Rng rng(seed);
  while (static_cast<int>(probes.size()) < last + std::min(last, others))
    probes.insert(static_cast<int>(rng.below(static_cast<std::uint64_t>(others))));
  return {probes.begin(), probes.end()};
}

void zip_saliency(std::span<const ZipProbe> probes, ZipNormalisation normalisation, std::span<float> scores) {
  const std::size_t n = scores.size();
  std::vector<double> sums(n);
  std::vector<int> visible(n);
  std::set<int> positions;
  for (const ZipProbe& probe : probes) {
    QEVICT_CHECK(positions.insert(probe.position).second, "no probe comes twice");
    QEVICT_CHECK(probe.position >= 0 && probe.row.size() == static_cast<std::size_t>(probe.position) + 1 &&
                     probe.row.size() <= n,
                 "a row over the tokens that it sees");
    for (std::size_t i = 0; i < probe.row.size(); ++i) {
      sums[i] += probe.row[i];
      ++visible[i];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double rows = normalisation == ZipNormalisation::code ? static_cast<double>(n - i) : visible[i];
    scores[i] = visible[i] == 0 ? 0.0f : static_cast<float>(sums[i] / rows);
  }
}

}  // namespace qevict
