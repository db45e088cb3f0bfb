// What the Highway files hand to the target table. Internal to the kernels.
#pragma once

#include "kernels/kernel_table.h"

namespace qevict {

struct DecodeKernels {
  void (*f16)(const DecodeTask& task);
  void (*codes)(const DecodeTask& task);
  WindowDecoder window;
};

struct PrefillKernels {
  std::size_t (*packed_bytes)(int tokens, int dim);
  void (*pack)(const HeadShape& shape, const PackedHead& head, int begin, int end);
  void (*stripe)(const StripeTask& task);
};

// Of the target that Highway's dispatch has chosen at this moment.
DecodeKernels highway_decode_kernels();
PrefillKernels highway_prefill_kernels();

}  // namespace qevict
