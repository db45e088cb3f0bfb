#pragma once

#include <string_view>
#include <vector>

namespace qevict {

std::string_view version();                     // "0.1.0"
std::string_view simd_target();                 // the attention kernels' instruction set in use, "AVX2", ...
std::vector<std::string_view> simd_targets();   // what this machine can run, best first
bool force_simd_target(std::string_view name);  // false if there is none of that name here; before the first session

}  // namespace qevict
