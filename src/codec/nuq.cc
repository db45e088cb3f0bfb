#include "codec/nuq.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "codec/record.h"

namespace qevict {
namespace {

using Floats = std::vector<float>;

constexpr float kSmallestRange = 0x1p-14f;
constexpr float kTwoBits[] = {-1.0f, 0.0f, 0.33792f, 1.0f};
constexpr float kThreeBits[] = {-1.0f, -0.47863f, -0.21714f, 0.0f, 0.16093f, 0.33792f, 0.56262f, 1.0f};
constexpr float kFourBits[] = {-1.0f,    -0.69619f, -0.52507f, -0.39492f, -0.28444f, -0.18477f, -0.09105f, 0.0f,
                               0.07958f, 0.16093f,  0.24611f,  0.33792f,  0.44071f,  0.56262f,  0.72296f,  1.0f};

bool takes(WindowShape shape) {
  const auto dim_fits = [&](int dim) {
    return dim > 0 && dim % 8 == 0 && dim <= kNuqLargestDim && shape.tokens * dim <= 65536;
  };
  return shape.tokens > 0 && shape.tokens <= 65536 && dim_fits(shape.key_dim) && dim_fits(shape.value_dim);
}

void check_window(const NuqLayout& layout, std::size_t n_keys, std::size_t n_values, std::size_t head_bytes,
                  std::size_t record_bytes) {
  QEVICT_CHECK(takes(layout.shape), "a window that nuq takes");
  QEVICT_CHECK(n_keys == layout.tokens() * layout.shape.key_dim, "the keys of one window");
  QEVICT_CHECK(n_values == layout.tokens() * layout.shape.value_dim, "the values of one window");
  QEVICT_CHECK(head_bytes == layout.head_bytes(), "the head's frozen parameters");
  QEVICT_CHECK(record_bytes == layout.bytes(), "a record of window_bytes");
}

struct Levels {
  std::array<float, 16> at;
};

Levels load_levels(std::span<const std::byte> part, std::size_t n) {
  Levels levels{};
  for (std::size_t i = 0; i < n; ++i) levels.at[i] = to_float(load_half(part, static_cast<int>(i)));
  return levels;
}

// The nearest level; of two as near the upper.
std::uint8_t nearest_level(const Levels& levels, std::size_t n, float x) {
  std::size_t code = 0;
  while (code + 1 < n && x >= (levels.at[code] + levels.at[code + 1]) / 2) ++code;
  return static_cast<std::uint8_t>(code);
}

struct Outlier {
  float size;  // |x'|
  std::size_t index;
};

// Keys or values of a window: normalised numbers to codes, the largest outliers to their places.
struct Part {
  std::span<const float> exact;   // [tokens][dim]
  Floats normalised;              // likewise
  std::vector<Outlier> outliers;  // at most as many as there are places are kept
};

void write_outliers(Part& part, std::size_t places, std::span<std::byte> count, std::span<std::byte> out) {
  std::vector<Outlier>& outliers = part.outliers;
  if (outliers.size() > places) {
    const auto larger = [](const Outlier& a, const Outlier& b) {
      return a.size != b.size ? a.size > b.size : a.index < b.index;
    };
    std::nth_element(outliers.begin(), outliers.begin() + static_cast<std::ptrdiff_t>(places), outliers.end(), larger);
    outliers.resize(places);
  }
  std::ranges::sort(outliers, {}, &Outlier::index);
  const auto n = static_cast<std::uint16_t>(outliers.size());
  std::memcpy(count.data(), &n, sizeof n);
  std::ranges::fill(out, std::byte{0});
  for (std::size_t i = 0; i < outliers.size(); ++i) {
    const auto index = static_cast<std::uint16_t>(outliers[i].index);
    std::memcpy(&out[2 * i], &index, sizeof index);
    store_half(out.subspan(2 * places), static_cast<int>(i), to_half_saturated(part.exact[outliers[i].index]));
  }
}

void read_outliers(std::size_t places, std::span<const std::byte> count, std::span<const std::byte> in,
                   std::span<float> out) {
  std::uint16_t n = 0;
  std::memcpy(&n, count.data(), sizeof n);
  for (std::size_t i = 0; i < std::min<std::size_t>(n, places); ++i) {
    std::uint16_t index = 0;
    std::memcpy(&index, &in[2 * i], sizeof index);
    if (index < out.size()) out[index] = to_float(load_half(in.subspan(2 * places), static_cast<int>(i)));
  }
}

template <int kBits>
void write_codes(const Part& part, const Levels& levels, int dim, std::span<std::byte> out) {
  const std::size_t row_bytes = bit_row_bytes(dim, kBits), width = static_cast<std::size_t>(dim);
  std::vector<std::uint8_t> codes(width);
  for (std::size_t t = 0; t * width < part.normalised.size(); ++t) {
    for (std::size_t c = 0; c < width; ++c)
      codes[c] =
          nearest_level(levels, std::size_t{1} << kBits, std::clamp(part.normalised[t * width + c], -1.0f, 1.0f));
    pack_bit_row<kBits>(codes, out.subspan(t * row_bytes, row_bytes));
  }
}

// Keys outside [offset - range, offset + range] are outliers.
Part normalised_keys(const NuqLayout& layout, std::span<const float> keys, std::span<const std::byte> head) {
  Part part{keys, Floats(keys.size()), {}};
  const auto dim = static_cast<std::size_t>(layout.shape.key_dim);
  for (std::size_t c = 0; c < dim; ++c) {
    const float offset = to_float(load_half(head.subspan(layout.offsets()), static_cast<int>(c)));
    const float range = to_float(load_half(head.subspan(layout.ranges()), static_cast<int>(c)));
    for (std::size_t i = c; i < keys.size(); i += dim) {
      part.normalised[i] = (keys[i] - offset) / range;
      if (keys[i] < offset - range || keys[i] > offset + range)
        part.outliers.push_back({std::abs(part.normalised[i]), i});
    }
  }
  return part;
}

Part normalised_values(const NuqLayout& layout, std::span<const float> values, std::span<const float> ranges,
                       std::span<std::byte> record) {
  Part part{values, Floats(values.size()), {}};
  const auto dim = static_cast<std::size_t>(layout.shape.value_dim);
  float lower = 0.0f, upper = 0.0f;
  if (ranges.empty()) {
    Floats window(values.begin(), values.end());
    lower = nuq_quantile(window, kNuqTail);
    upper = nuq_quantile(window, 1.0 - kNuqTail);
  }
  for (std::size_t t = 0; t < layout.tokens(); ++t) {
    if (!ranges.empty()) {
      lower = ranges[2 * t];
      upper = ranges[2 * t + 1];
    }
    const NuqRange stored = nuq_value_range(values.subspan(t * dim, dim), lower, upper);
    store_half(record.subspan(layout.value_offsets()), static_cast<int>(t), stored.offset);
    store_half(record.subspan(layout.value_ranges()), static_cast<int>(t), stored.range);
    const float offset = to_float(stored.offset), range = to_float(stored.range);
    for (std::size_t i = t * dim; i < (t + 1) * dim; ++i) {
      part.normalised[i] = (values[i] - offset) / range;
      if (values[i] <= lower || values[i] >= upper) part.outliers.push_back({std::abs(part.normalised[i]), i});
    }
  }
  return part;
}

}  // namespace

NuqRange nuq_range(float lowest, float highest) {
  const Half offset = to_half_saturated(lowest / 2 + highest / 2);
  const float middle = to_float(offset);
  const float reach = std::max({highest - middle, middle - lowest, kSmallestRange});
  Half range = to_half_saturated(reach);
  if (to_float(range) < reach && range.bits < 0x7bffu) ++range.bits;
  return {offset, range};
}

NuqRange nuq_value_range(std::span<const float> row, float lower, float upper) {
  float lowest = std::numeric_limits<float>::infinity(), highest = -lowest;
  for (const float x : row)
    if (x > lower && x < upper) {
      lowest = std::min(lowest, x);
      highest = std::max(highest, x);
    }
  if (lowest > highest) {
    Floats sorted(row.begin(), row.end());
    std::ranges::sort(sorted);
    lowest = highest = sorted[(sorted.size() - 1) / 2];
  }
  return nuq_range(lowest, highest);
}

float nuq_quantile(std::span<float> values, double share) {
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(place);
  std::nth_element(values.begin(), values.begin() + below, values.end());
  const double low = values[static_cast<std::size_t>(below)];
  if (below + 1 == std::ssize(values)) return static_cast<float>(low);
  const double high = *std::min_element(values.begin() + below + 1, values.end());
  return static_cast<float>(low + (place - static_cast<double>(below)) * (high - low));
}

void nuq_value_ranges(std::span<const float> values, int n_heads, int value_dim, std::span<float> ranges) {
  const auto dim = static_cast<std::size_t>(value_dim), tokens = ranges.size() / 2;
  QEVICT_CHECK(n_heads > 0 && value_dim > 0 && ranges.size() == 2 * tokens &&
                   values.size() == static_cast<std::size_t>(n_heads) * tokens * dim,
               "the values of all heads of a layer");
  Floats row;
  for (std::size_t t = 0; t < tokens; ++t) {
    row.clear();
    for (std::size_t at = t * dim; at < values.size(); at += tokens * dim)
      row.insert(row.end(), &values[at], &values[at] + dim);
    ranges[2 * t] = nuq_quantile(row, kNuqTail);
    ranges[2 * t + 1] = nuq_quantile(row, 1.0 - kNuqTail);
  }
}

std::span<const float> normal_float_levels(int bits) {
  QEVICT_CHECK(bits >= 2 && bits <= 4, "NormalFloat tables of 2 to 4 bits");
  if (bits == 2) return kTwoBits;
  if (bits == 3) return kThreeBits;
  return kFourBits;
}

void store_nuq_head(const NuqLayout& layout, std::span<const NuqRange> ranges, std::span<const float> key_levels,
                    std::span<const float> value_levels, std::span<std::byte> head) {
  QEVICT_CHECK(ranges.size() == static_cast<std::size_t>(layout.shape.key_dim), "a range for each channel");
  QEVICT_CHECK(key_levels.size() == layout.n_levels() && value_levels.size() == layout.n_levels(), "2^bits levels");
  QEVICT_CHECK(head.size() == layout.head_bytes(), "the head's frozen parameters");
  for (std::size_t c = 0; c < ranges.size(); ++c) {
    store_half(head.subspan(layout.offsets()), static_cast<int>(c), ranges[c].offset);
    store_half(head.subspan(layout.ranges()), static_cast<int>(c), ranges[c].range);
  }
  for (std::size_t i = 0; i < layout.n_levels(); ++i) {
    store_half(head.subspan(layout.key_levels()), static_cast<int>(i), to_half(key_levels[i]));
    store_half(head.subspan(layout.value_levels()), static_cast<int>(i), to_half(value_levels[i]));
  }
}

template <int kBits>
bool Nuq<kBits>::supports(WindowShape shape) {
  return takes(shape);
}

template <int kBits>
std::size_t Nuq<kBits>::window_bytes(WindowShape shape) {
  return NuqLayout{shape, kBits}.bytes();
}

template <int kBits>
std::size_t Nuq<kBits>::head_bytes(WindowShape shape) {
  return NuqLayout{shape, kBits}.head_bytes();
}

template <int kBits>
void Nuq<kBits>::estimate_head(WindowShape shape, std::span<const float> keys, std::span<const float>,
                               std::span<std::byte> head) {
  const auto dim = static_cast<std::size_t>(shape.key_dim);
  QEVICT_CHECK(takes(shape) && !keys.empty() && keys.size() % dim == 0, "at least one key");
  std::vector<NuqRange> ranges;
  Floats channel;
  for (std::size_t c = 0; c < dim; ++c) {
    channel.clear();
    for (std::size_t i = c; i < keys.size(); i += dim) channel.push_back(keys[i]);
    const float lowest = nuq_quantile(channel, kNuqTail);
    ranges.push_back(nuq_range(lowest, nuq_quantile(channel, 1.0 - kNuqTail)));
  }
  store_nuq_head({shape, kBits}, ranges, normal_float_levels(kBits), normal_float_levels(kBits), head);
}

template <int kBits>
bool Nuq<kBits>::encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                        std::span<const std::byte> head, std::span<std::byte> record) {
  return encode_with(shape, keys, values, {}, head, record);
}

template <int kBits>
bool Nuq<kBits>::encode_with(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                             const TokenSide& side, std::span<const std::byte> head, std::span<std::byte> record) {
  const NuqLayout layout{shape, kBits};
  check_window(layout, keys.size(), values.size(), head.size(), record.size());
  QEVICT_CHECK(side.value_ranges.empty() || side.value_ranges.size() == 2 * layout.tokens(), "two for each token");
  if (!all_finite(keys) || !all_finite(values) || !all_finite(side.value_ranges)) return false;

  Part part = normalised_keys(layout, keys, head);
  write_codes<kBits>(part, load_levels(head.subspan(layout.key_levels()), layout.n_levels()), shape.key_dim,
                     record.subspan(layout.key_codes()));
  write_outliers(part, layout.places(shape.key_dim), record.subspan(layout.counts()),
                 record.subspan(layout.key_outliers(), 4 * layout.places(shape.key_dim)));

  part = normalised_values(layout, values, side.value_ranges, record);
  write_codes<kBits>(part, load_levels(head.subspan(layout.value_levels()), layout.n_levels()), shape.value_dim,
                     record.subspan(layout.value_codes()));
  write_outliers(part, layout.places(shape.value_dim), record.subspan(layout.counts() + 2),
                 record.subspan(layout.value_outliers(), 4 * layout.places(shape.value_dim)));
  return true;
}

template <int kBits>
void Nuq<kBits>::decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte> head,
                        std::span<float> keys, std::span<float> values) {
  const NuqLayout layout{shape, kBits};
  check_window(layout, keys.size(), values.size(), head.size(), record.size());
  const auto key_dim = static_cast<std::size_t>(shape.key_dim), value_dim = static_cast<std::size_t>(shape.value_dim);
  std::array<float, kNuqLargestDim> offsets, ranges;
  for (int c = 0; c < shape.key_dim; ++c) {
    offsets[c] = to_float(load_half(head.subspan(layout.offsets()), c));
    ranges[c] = to_float(load_half(head.subspan(layout.ranges()), c));
  }
  const Levels key_levels = load_levels(head.subspan(layout.key_levels()), layout.n_levels());
  const Levels value_levels = load_levels(head.subspan(layout.value_levels()), layout.n_levels());
  const std::size_t key_bytes = bit_row_bytes(shape.key_dim, kBits),
                    value_bytes = bit_row_bytes(shape.value_dim, kBits);
  for (std::size_t t = 0; t < layout.tokens(); ++t) {
    const auto key = keys.subspan(t * key_dim, key_dim);
    unpack_bit_row<kBits>(record.subspan(layout.key_codes() + t * key_bytes, key_bytes), key,
                          [&](std::uint32_t code) { return key_levels.at[code]; });
    for (std::size_t c = 0; c < key_dim; ++c) key[c] = offsets[c] + ranges[c] * key[c];

    const auto value = values.subspan(t * value_dim, value_dim);
    const float offset = to_float(load_half(record.subspan(layout.value_offsets()), static_cast<int>(t)));
    const float range = to_float(load_half(record.subspan(layout.value_ranges()), static_cast<int>(t)));
    unpack_bit_row<kBits>(record.subspan(layout.value_codes() + t * value_bytes, value_bytes), value,
                          [&](std::uint32_t code) { return offset + range * value_levels.at[code]; });
  }
  read_outliers(layout.places(shape.key_dim), record.subspan(layout.counts()), record.subspan(layout.key_outliers()),
                keys);
  read_outliers(layout.places(shape.value_dim), record.subspan(layout.counts() + 2),
                record.subspan(layout.value_outliers()), values);
}

template struct Nuq<2>;
template struct Nuq<3>;
template struct Nuq<4>;

}  // namespace qevict
