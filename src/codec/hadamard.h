// Walsh-Hadamard transforms (natural, i.e. Sylvester, order), orthonormal and their own inverses; and the fixed
// rotation of values that is made of one: random signs, then the transform, block-diagonal in falling powers of two
// where the dimension is no power of two: 80 = 64 + 16. It is linear, so attention undoes it once per query on the
// weighted sum, not per key.
#pragma once

#include <span>

namespace qevict {

// [dim], each +1 or -1: bit i of the SplitMix64(seed 0) stream, lowest bit first, 1 = minus. REQUIRES: dim <= 1024.
std::span<const float> rotation_signs(int dim);

// In place: row = H * (signs o row) / sqrt(block). row and signs: [dim].
void rotate_values(std::span<float> row, std::span<const float> signs);
// The inverse: row = signs o (H * row) / sqrt(block).
void unrotate_values(std::span<float> row, std::span<const float> signs);

// In place: each run of `block` elements = H * run / sqrt(block). REQUIRES: block is a power of two that divides the
// row.
void hadamard_blocks(std::span<float> row, int block);

}  // namespace qevict
