// Rows side by side must give what one token at a time gives, to the bit.
#include "codec/token_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "codec/hadamard.h"
#include "codec/kxvy.h"

namespace qevict {
namespace {

using Floats = std::vector<float>;

// Kinds of rows: normal ones of many sizes, on boundaries, zeros of both signs, the smallest numbers.
Floats rows_of(Rng& rng, int kind, int n, int dim) {
  Floats rows(static_cast<std::size_t>(n) * dim);
  const double size = std::pow(10, rng.uniform() * 8 - 4);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    double x = rng.normal() * size;
    if (kind == 1) x = std::round(rng.normal() * 2) / 2;
    if (kind == 2) x = rng.below(2) == 0 ? 0.0 : -0.0;
    if (kind == 3) x = rng.normal() * 1e-42;
    if (kind == 4 && i / dim % 2 == 0) x = 0;
    rows[i] = static_cast<float>(x);
  }
  return rows;
}

TEST(TokenBlock, CodesAndScalesAreThoseOfTokensAlone) {
  Rng rng(1);
  for (const int bits : {2, 3, 4})
    for (const int dim : {2, 6, 16, 64, 80, 128})
      for (const int n : {4, 8})
        for (int kind = 0; kind < 5; ++kind)
          for (const bool exclude : {false, true}) {
            Floats rows = rows_of(rng, kind, n, dim);
            std::vector<std::uint8_t> excluded;
            if (exclude) {
              for (int d = 0; d < dim; ++d) excluded.push_back(d % 5 == 1);
              for (std::size_t i = 0; i < rows.size(); ++i)
                if (excluded[i % dim] != 0) rows[i] = 0;
            }
            TokenBlock block{.dim = dim, .rows = {}};
            load_rows(rows, n, block);
            const ScaleRule rule = kind % 2 == 0 ? ScaleRule::least_squares : ScaleRule::midway;
            std::vector<std::uint8_t> codes(rows.size()), want(rows.size());
            std::vector<std::byte> scales(n);
            encode_rows(block, excluded, bits, rule, n, codes, scales);
            for (int t = 0; t < n; ++t) {
              const std::size_t at = static_cast<std::size_t>(t) * dim;
              const std::uint8_t scale = encode_token(std::span<const float>(rows).subspan(at, dim), excluded, bits,
                                                      rule, std::span(want).subspan(at, dim));
              EXPECT_EQ(std::to_integer<int>(scales[t]), scale) << bits << " " << dim << " " << kind;
            }
            EXPECT_EQ(codes, want) << bits << " " << dim << " " << kind;
          }
}

TEST(TokenBlock, RotationsAreThoseOfTokensAlone) {
  Rng rng(2);
  for (const int dim : {2, 6, 64, 80, 96, 128, 256})
    for (const int n : {4, 8}) {
      Floats rows = rows_of(rng, 0, n, dim);
      TokenBlock block{.dim = dim, .rows = {}};
      load_rows(rows, n, block);
      rotate_rows(block, rotation_signs(dim));
      for (int t = 0; t < n; ++t) {
        const auto row = std::span(rows).subspan(static_cast<std::size_t>(t) * dim, dim);
        rotate_values(row, rotation_signs(dim));
        for (int d = 0; d < dim; ++d) EXPECT_EQ(block.channel(d)[t], row[d]) << dim << " " << d;
      }
      for (int d = 0; d < dim; ++d)
        for (int t = n; t < kBlockTokens; ++t) EXPECT_EQ(block.channel(d)[t], 0.0f);
    }
}

}  // namespace
}  // namespace qevict
