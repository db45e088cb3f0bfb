// A new file with a model's weights as f32, for measuring divergence without the noise of low-bit kernels.
#pragma once

#include <string>

#include "qevict/result.h"

namespace qevict {

// The copy appears under its name only once it is whole. Errors: `to` exists; what reading and writing say.
Result<void> make_f32_copy(const std::string& from, const std::string& to);

}  // namespace qevict
