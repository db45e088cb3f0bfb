#include "codec/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"

namespace qevict {
namespace {

std::vector<float> random_row(Rng& rng, int dim) {
  std::vector<float> row(dim);
  for (float& value : row) value = static_cast<float>(rng.normal());
  return row;
}

TEST(RotationSigns, FirstSixteenAndSplitMixWords) {
  SplitMix64 stream(0);
  const std::uint64_t words[] = {stream.next(), stream.next()};
  EXPECT_EQ(words[0], 0xE220A8397B1DCDAFu);
  EXPECT_EQ(words[1], 0x6E789E6AA1B965F4u);
  const auto signs = rotation_signs(128);
  std::string first;
  for (int d = 0; d < 16; ++d) first += signs[d] < 0 ? '-' : '+';
  EXPECT_EQ(first, "----+-+--+--++--");
  for (int d = 0; d < 128; ++d) EXPECT_EQ(signs[d], (words[d / 64] >> d % 64 & 1) != 0 ? -1.0f : 1.0f);
}

// Against the definition: Sylvester's H has (-1)^popcount(i & j) in row i, column j.
TEST(RotateValues, IsTheBlockDiagonalHadamardMatrix) {
  const std::vector<std::vector<int>> kinds = {{4}, {8}, {4, 2}, {64}, {64, 16}, {64, 32}, {128, 64}, {256}};
  Rng rng(1);
  for (const std::vector<int>& blocks : kinds) {
    int dim = 0;
    for (const int block : blocks) dim += block;
    const auto signs = rotation_signs(dim);
    const std::vector<float> row = random_row(rng, dim);
    std::vector<float> rotated = row;
    rotate_values(rotated, signs);
    int begin = 0;
    for (const int block : blocks) {
      for (int i = 0; i < block; ++i) {
        double sum = 0;
        for (int j = 0; j < block; ++j)
          sum +=
              (std::popcount(static_cast<unsigned>(i & j)) % 2 != 0 ? -1.0 : 1.0) * signs[begin + j] * row[begin + j];
        EXPECT_NEAR(rotated[begin + i], sum / std::sqrt(block), 2e-6) << dim << " " << begin + i;
      }
      begin += block;
    }
    unrotate_values(rotated, signs);
    for (int d = 0; d < dim; ++d) EXPECT_NEAR(rotated[d], row[d], 2e-6);
  }
}

TEST(RotateValues, UndoingItOnAWeightedSumIsTheSumOfUndoneRows) {
  Rng rng(2);
  constexpr int kDim = 80;
  const auto signs = rotation_signs(kDim);
  std::vector<float> of_sum(kDim), sum_of(kDim);
  for (int key = 0; key < 5; ++key) {
    std::vector<float> row = random_row(rng, kDim);
    const float weight = static_cast<float>(rng.uniform());
    for (int d = 0; d < kDim; ++d) of_sum[d] += weight * row[d];
    unrotate_values(row, signs);
    for (int d = 0; d < kDim; ++d) sum_of[d] += weight * row[d];
  }
  unrotate_values(of_sum, signs);
  for (int d = 0; d < kDim; ++d) EXPECT_NEAR(of_sum[d], sum_of[d], 2e-6);
}

}  // namespace
}  // namespace qevict
