// What the Highway files hand to the target table. Internal to the kernels.
#pragma once

#include "kernels/kernel_table.h"

namespace qevict {

struct DecodeKernels {
  void (*f16)(const DecodeTask& task);
  void (*codes)(const DecodeTask& task);  // by the codec's decode()
  WindowDecoder window;
};

// Of the target that Highway's dispatch has chosen at this moment.
DecodeKernels highway_decode_kernels();
PrefillKernels highway_prefill_kernels();
// Read codes of some codecs and shapes directly; return false, having done nothing, for others.
bool (*highway_codes16())(const DecodeTask& task);
bool (*highway_blocks())(const DecodeTask& task);
bool (*highway_kivi())(const DecodeTask& task);
void (*highway_rows())(const RowsTask& task);

}  // namespace qevict
