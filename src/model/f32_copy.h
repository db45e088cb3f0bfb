// An f32 copy of a model file: the same weights, without the rounding that low-bit kernels do to activations.
// Divergence between caches is measured on such a copy (docs/measurements.md).
#pragma once

#include <string>

#include "qevict/result.h"

namespace qevict {

// Writes `to` with libllama's own quantizer; a file of that name is replaced. Errors name the file and libllama's
// reason.
Result<void> write_f32_copy(const std::string& from, const std::string& to);

}  // namespace qevict
