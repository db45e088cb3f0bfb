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
CodeReader highway_codes16();
CodeReader highway_blocks();
CodeReader highway_kivi();
void (*highway_rows())(const RowsTask& task);

}  // namespace qevict
