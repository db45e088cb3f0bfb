// The fixed orthonormal rotation of values: random signs, then a Walsh-Hadamard transform (natural, i.e. Sylvester,
// order), block-diagonal in falling powers of two where the dimension is no power of two: 80 = 64 + 16. It is linear,
// so attention undoes it once per query on the weighted sum, not per key.
#pragma once

#include <span>

namespace qevict {

// [dim], each +1 or -1: bit i of the SplitMix64(seed 0) stream, lowest bit first, 1 = minus. REQUIRES: dim <= 1024.
std::span<const float> rotation_signs(int dim);

// In place: row = H * (signs o row) / sqrt(block). row and signs: [dim].
void rotate_values(std::span<float> row, std::span<const float> signs);
// The inverse: row = signs o (H * row) / sqrt(block).
void unrotate_values(std::span<float> row, std::span<const float> signs);

}  // namespace qevict
