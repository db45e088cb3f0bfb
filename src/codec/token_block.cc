#include "codec/token_block.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "codec/lloyd_max.h"
#include "codec/scale8.h"

namespace qevict {
namespace {

constexpr int kN = kBlockTokens;

// block: channels begin .. begin + n, a power of two many.
void transform_channels(float* rows, std::size_t n) {
  for (std::size_t half = kN; half < n * kN; half *= 2)
    for (std::size_t begin = 0; begin < n * kN; begin += 2 * half)
      for (std::size_t i = begin; i < begin + half; ++i) {
        const float a = rows[i], b = rows[i + half];
        rows[i] = a + b;
        rows[i + half] = a - b;
      }
  const float normalise = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (std::size_t i = 0; i < n * kN; ++i) rows[i] *= normalise;
}

template <int kBits>
void encode_as(const TokenBlock& block, std::span<const std::uint8_t> excluded, ScaleRule rule, int n,
               std::span<std::uint8_t> codes, std::span<std::byte> scales) {
  constexpr int kBoundaries = (1 << kBits) - 1;
  const auto boundaries = lloyd_max_boundaries(kBits);
  float boundary[kBoundaries];
  std::copy_n(boundaries.begin(), kBoundaries, boundary);
  double level_of[1 << kBits];
  std::copy_n(lloyd_max_levels(kBits).begin(), 1 << kBits, level_of);

  const int dim = block.dim;
  double squares[kN] = {};
  for (int d = 0; d < dim; ++d) {
    const float* row = block.channel(d);
    for (int t = 0; t < kN; ++t) squares[t] += static_cast<double>(row[t]) * row[t];
  }
  const auto n_counted = dim - std::ranges::count_if(excluded, [](std::uint8_t e) { return e != 0; });
  double rms[kN], row_level[kN] = {}, level_level[kN] = {};
  // A row of zeros gets the codes and the scale of zero.
  for (int t = 0; t < kN; ++t)
    rms[t] = squares[t] == 0.0 ? 1.0 : std::sqrt(squares[t] / static_cast<double>(n_counted));
  for (int d = 0; d < dim; ++d) {
    const float* row = block.channel(d);
    float quotient[kN];
    std::int32_t code[kN] = {};
    for (int t = 0; t < kN; ++t) quotient[t] = static_cast<float>(row[t] / rms[t]);
    for (int j = 0; j < kBoundaries; ++j)
      for (int t = 0; t < kN; ++t) code[t] += quotient[t] >= boundary[j];
    for (int t = 0; t < n; ++t) codes[static_cast<std::size_t>(t) * dim + d] = static_cast<std::uint8_t>(code[t]);
    double level[kN];
    for (int t = 0; t < kN; ++t) level[t] = level_of[code[t]];
    for (int t = 0; t < kN; ++t) row_level[t] += row[t] * level[t];
    if (!excluded.empty() && excluded[d] != 0) continue;
    for (int t = 0; t < kN; ++t) level_level[t] += level[t] * level[t];
  }
  for (int t = 0; t < n; ++t)
    scales[t] = std::byte{scale8_of(token_scale(rule, squares[t], row_level[t], level_level[t]))};
}

}  // namespace

void load_rows(std::span<const float> given, int n, TokenBlock& block) {
  const auto dim = static_cast<std::size_t>(block.dim);
  QEVICT_CHECK(n <= kN && given.size() == n * dim, "at most a block of rows");
  block.rows.assign(dim * kN, 0.0f);
  if (n == kN) {
    for (std::size_t d = 0; d < dim; ++d)
      for (std::size_t t = 0; t < kN; ++t) block.rows[d * kN + t] = given[t * dim + d];
    return;
  }
  for (std::size_t t = 0; t < static_cast<std::size_t>(n); ++t)
    for (std::size_t d = 0; d < dim; ++d) block.rows[d * kN + t] = given[t * dim + d];
}

void rotate_rows(TokenBlock& block, std::span<const float> signs) {
  QEVICT_CHECK(signs.size() == static_cast<std::size_t>(block.dim), "one sign per channel");
  for (int d = 0; d < block.dim; ++d)
    for (int t = 0; t < kN; ++t) block.channel(d)[t] *= signs[d];
  for (std::size_t done = 0, dim = signs.size(); done < dim;) {
    const std::size_t n = std::bit_floor(dim - done);
    transform_channels(block.channel(static_cast<int>(done)), n);
    done += n;
  }
}

void encode_rows(const TokenBlock& block, std::span<const std::uint8_t> excluded, int bits, ScaleRule rule, int n,
                 std::span<std::uint8_t> codes, std::span<std::byte> scales) {
  QEVICT_CHECK(codes.size() == static_cast<std::size_t>(n) * block.dim && scales.size() == static_cast<std::size_t>(n),
               "a code per channel and a scale per token");
  if (bits == 2) return encode_as<2>(block, excluded, rule, n, codes, scales);
  if (bits == 3) return encode_as<3>(block, excluded, rule, n, codes, scales);
  QEVICT_CHECK(bits == 4, "Lloyd-Max codes have 2 to 4 bits");
  encode_as<4>(block, excluded, rule, n, codes, scales);
}

}  // namespace qevict
