// Which Highway targets are built: the baseline, then AVX2 and better, or NEON. No include guard: foreach_target.h is
// included once per source file.
#include "kernels/simd_config.h"
// After the configuration:
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
