// qevict bench --kernels: our attention kernels, checked and then timed, beside ggml's.
#pragma once

#include "bench_report.h"
#include "options.h"

namespace qevict::app {

struct KernelPlan {
  int n_tokens = 7680;
  int repetitions = 11;
  BenchFormat format = BenchFormat::markdown;
};

// On the head shape and the number of heads of the options' model. Returns the exit code.
int bench_kernels(const Options& options, const KernelPlan& plan);

// Time of ours over the rival's, for rows that do the same work: decode rows by ggml's decode, prefill by its prefill.
void add_kernel_ratios(std::vector<Json>& rows);

}  // namespace qevict::app
