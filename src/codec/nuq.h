// KVQuant (arXiv 2401.18079): codes of 2, 3 or 4 bits into a table of levels in [-1, 1], and about 1 % of the numbers
// exactly. Keys before RoPE with a frozen offset and range for each channel; values with an offset and range for each
// token. A window's record, T tokens, b bits, C(D) = ceil(T D / 64) places for outliers:
//
//   key codes [T][Dk b / 8] | value codes [T][Dv b / 8]                    bit_rows.h
//   value offsets f16[T] | value ranges f16[T]
//   numbers of outliers u16[2], keys then values
//   key outliers:   indices u16[C(Dk)] | f16[C(Dk)]     index = token * Dk + channel, ascending; unused places are 0
//   value outliers: indices u16[C(Dv)] | f16[C(Dv)]
//
// Head parameters: key offset f16[Dk] | key range f16[Dk] | key levels f16[2^b] | value levels f16[2^b], ascending.
// x = offset + range * level, or the outlier.  REQUIRES: dims multiples of 8 up to 512, T * D at most 65536.
#pragma once

#include <vector>

#include "base/half.h"
#include "codec/bit_rows.h"
#include "codec/codec.h"

namespace qevict {

inline constexpr int kNuqOutlierSpacing = 64;  // numbers for each place of an outlier
inline constexpr int kNuqLargestDim = 512;
inline constexpr double kNuqTail = 0.005;  // share of outliers on each side

// Byte offsets of the parts of a record, and of the head parameters.
struct NuqLayout {
  WindowShape shape;
  int bits = 3;

  constexpr std::size_t tokens() const { return static_cast<std::size_t>(shape.tokens); }
  // Most outliers of keys (dim = key_dim) or values.
  constexpr std::size_t places(int dim) const {
    return (tokens() * static_cast<std::size_t>(dim) + kNuqOutlierSpacing - 1) / kNuqOutlierSpacing;
  }
  constexpr std::size_t key_codes() const { return 0; }
  constexpr std::size_t value_codes() const { return tokens() * bit_row_bytes(shape.key_dim, bits); }
  constexpr std::size_t value_offsets() const {
    return value_codes() + tokens() * bit_row_bytes(shape.value_dim, bits);
  }
  constexpr std::size_t value_ranges() const { return value_offsets() + 2 * tokens(); }
  constexpr std::size_t counts() const { return value_ranges() + 2 * tokens(); }
  constexpr std::size_t key_outliers() const { return counts() + 4; }
  constexpr std::size_t value_outliers() const { return key_outliers() + 4 * places(shape.key_dim); }
  constexpr std::size_t bytes() const { return value_outliers() + 4 * places(shape.value_dim); }

  constexpr std::size_t n_levels() const { return std::size_t{1} << bits; }
  constexpr std::size_t offsets() const { return 0; }
  constexpr std::size_t ranges() const { return 2 * static_cast<std::size_t>(shape.key_dim); }
  constexpr std::size_t key_levels() const { return 4 * static_cast<std::size_t>(shape.key_dim); }
  constexpr std::size_t value_levels() const { return key_levels() + 2 * n_levels(); }
  constexpr std::size_t head_bytes() const { return value_levels() + 2 * n_levels(); }
};
static_assert(NuqLayout{{.tokens = 32, .key_dim = 64, .value_dim = 64}, 2}.bytes() == 1412);  // f16 would be 8192
static_assert(NuqLayout{{.tokens = 32, .key_dim = 64, .value_dim = 64}, 3}.bytes() == 1924);
static_assert(NuqLayout{{.tokens = 32, .key_dim = 64, .value_dim = 64}, 3}.head_bytes() == 288);

// What a channel or token is normalised by: x' = (x - offset) / range.
struct NuqRange {
  Half offset;
  Half range;
};
// The middle of [lowest, highest], and a range, at least 2^-14, so large that rounding puts neither end outside.
NuqRange nuq_range(float lowest, float highest);

// Of one token's values in one head, [value_dim]: from those above `lower` and below `upper`; from the lower median if
// there are none.
NuqRange nuq_value_range(std::span<const float> row, float lower, float upper);

// The quantile with linear interpolation, share in [0, 1]; reorders the values.  REQUIRES: at least one value.
float nuq_quantile(std::span<float> values, double share);

// TokenSide::value_ranges of a layer: the 0.5 % and 99.5 % quantiles of each token's values over all KV heads.
// values: [n_heads][tokens][value_dim], ranges: [tokens][2], written.
void nuq_value_ranges(std::span<const float> values, int n_heads, int value_dim, std::span<float> ranges);

// The NormalFloat table of 2, 3 or 4 bits, ascending.
std::span<const float> normal_float_levels(int bits);

// Head parameters of a codec of layout.bits. ranges: [key_dim]; levels: [2^bits], ascending; head: [head_bytes],
// written.
void store_nuq_head(const NuqLayout& layout, std::span<const NuqRange> ranges, std::span<const float> key_levels,
                    std::span<const float> value_levels, std::span<std::byte> head);

template <int kBits>
struct Nuq {
  static bool supports(WindowShape shape);
  static std::size_t window_bytes(WindowShape shape);
  static std::size_t head_bytes(WindowShape shape);
  // Ranges from the keys' percentiles, NormalFloat levels. A calibration (nuq_calibration.h) knows better.
  static void estimate_head(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                            std::span<std::byte> head);
  static bool encode(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                     std::span<const std::byte> head, std::span<std::byte> record);
  static bool encode_with(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                          const TokenSide& side, std::span<const std::byte> head, std::span<std::byte> record);
  static void decode(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte> head,
                     std::span<float> keys, std::span<float> values);

  static constexpr CodecRow row(std::string_view name, std::string_view summary) {
    return {.name = name,
            .summary = summary,
            .source = "arXiv 2401.18079, 1 % outliers",
            .needs = "head sizes that are multiples of 8 up to 512 and at most 65536 numbers a window",
            .key_bits = kBits,
            .value_bits = kBits,
            .window_tokens = 32,
            .supports = &supports,
            .window_bytes = &window_bytes,
            .head_bytes = &head_bytes,
            .estimate_head = &estimate_head,
            .encode = &encode,
            .uses_value_ranges = true,
            .encode_with = &encode_with,
            .decode = &decode};
  }
};
extern template struct Nuq<2>;
extern template struct Nuq<3>;
extern template struct Nuq<4>;

}  // namespace qevict
