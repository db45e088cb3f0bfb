// Decode over the paper's integer codes in AVX-512 with VNNI: operations that Highway 1.0.3 lacks. Internal.
#pragma once

#include "kernels/kernel_table.h"

namespace qevict {

bool cpu_has_avx512_vnni();

// Whether decode_codes_avx512 can read this head's records; otherwise callers take the general path.
bool fits_codes_avx512(const DecodeTask& task);
void decode_codes_avx512(const DecodeTask& task);

}  // namespace qevict
