#include "codec/hadamard.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "base/rng.h"

namespace qevict {
namespace {

constexpr int kMaxDim = 1024;

constexpr std::array<float, kMaxDim> kSigns = [] {
  std::array<float, kMaxDim> signs{};
  SplitMix64 stream(0);
  for (int word = 0; word < kMaxDim / 64; ++word) {
    const std::uint64_t bits = stream.next();
    for (int bit = 0; bit < 64; ++bit) signs[word * 64 + bit] = (bits >> bit & 1) != 0 ? -1.0f : 1.0f;
  }
  return signs;
}();

// Orthonormal, its own inverse. block: a power of two many.
void transform_block(std::span<float> block) {
  const std::size_t n = block.size();
  for (std::size_t half = 1; half < n; half *= 2)
    for (std::size_t begin = 0; begin < n; begin += 2 * half)
      for (std::size_t i = begin; i < begin + half; ++i) {
        const float a = block[i], b = block[i + half];
        block[i] = a + b;
        block[i + half] = a - b;
      }
  const float normalise = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (float& value : block) value *= normalise;
}

void transform(std::span<float> row) {
  while (!row.empty()) {
    const std::size_t block = std::bit_floor(row.size());
    transform_block(row.first(block));
    row = row.subspan(block);
  }
}

void apply_signs(std::span<float> row, std::span<const float> signs) {
  QEVICT_CHECK(row.size() == signs.size(), "one sign per channel");
  for (std::size_t d = 0; d < row.size(); ++d) row[d] *= signs[d];
}

}  // namespace

std::span<const float> rotation_signs(int dim) {
  QEVICT_CHECK(dim >= 0 && dim <= kMaxDim, "values have at most 1024 channels");
  return std::span(kSigns).first(dim);
}

void rotate_values(std::span<float> row, std::span<const float> signs) {
  apply_signs(row, signs);
  transform(row);
}

void unrotate_values(std::span<float> row, std::span<const float> signs) {
  transform(row);
  apply_signs(row, signs);
}

void hadamard_blocks(std::span<float> row, int block) {
  const auto n = static_cast<std::size_t>(block);
  QEVICT_CHECK(block > 0 && std::has_single_bit(n) && row.size() % n == 0, "a power of two that divides the row");
  for (; !row.empty(); row = row.subspan(n)) transform_block(row.first(n));
}

}  // namespace qevict
