// Decode over codes in AVX-512 with VNNI: operations that Highway 1.0.3 lacks. Internal.
#pragma once

#include "kernels/kernel_table.h"

namespace qevict {

bool cpu_has_avx512_vnni();

// Each returns false, having done nothing, if it cannot read this head's records; callers then take the general path.
bool decode_paper_avx512(const DecodeTask& task);
bool decode_kxvy_avx512(const DecodeTask& task);
bool decode_blocks_avx512(const DecodeTask& task);

}  // namespace qevict
