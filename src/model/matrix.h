// The matrix of a matmul. ggml has fast, repacked matmuls for some types only; Q4_1 becomes one of them, Q4_0, when it
// is loaded: d q + m = d (q - 8) + (m + 8 d), so that what is left out is one number for each block of 32 weights,
// times the sum of the block's inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ggml.h"

namespace qevict {

struct Matrix {
  ggml_tensor* weight = nullptr;   // [n_in][n_out], ggml's first dimension first
  ggml_tensor* offsets = nullptr;  // f32 [n_out][n_in / 32], or null: nothing is left out

  explicit operator bool() const { return weight != nullptr; }
};

// x: f32 [n_in][n_tokens], rows may be apart. Returns f32 [n_out][n_tokens].
ggml_tensor* multiply(ggml_context* context, const Matrix& matrix, ggml_tensor* x);

// Rows of Q4_1 [n_out][n_in] as Q4_0 of the same shape and offsets [n_in / 32][n_out]. Exact, but for a rounding to f32
// where d and m lie more than 2^13 apart. REQUIRES: n_in is a multiple of 32 and sizes fit.
void split_q4_1(std::span<const std::byte> q4_1, std::int64_t n_in, std::int64_t n_out, std::span<std::byte> q4_0,
                std::span<float> offsets);

}  // namespace qevict
