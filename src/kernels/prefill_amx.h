// Prefill stripes on AMX tiles. Internal.
#pragma once

#include "kernels/simd_kernels.h"

namespace qevict {

// Asks the kernel for the tile registers, once; false where CPU or kernel lacks them.
bool enable_amx_bf16();
PrefillKernels amx_prefill_kernels();

}  // namespace qevict
