// Times every kernel on every target of this machine, after checking it against the reference: `qevict bench
// --kernels`.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/attention.h"

namespace qevict {

struct Spread {
  double median = 0.0;
  double lowest = 0.0;
  double highest = 0.0;
};

struct KernelBenchRow {
  std::string kernel;  // "decode f16", "decode f16 windows" (scattered), "decode int2", "prefill", ...
  std::string target;
  HeadShape shape;
  int n_kv_heads = 0;         // heads timed together, each with its own memory
  int n_tokens = 0;           // of each head
  double output_error = 0.0;  // relative to the reference, root mean square
  double logit_error = 0.0;   // largest absolute; of prefill: relative error of the column sums
  double bytes = 0.0;         // of cache that one pass reads
  Spread milliseconds;        // of one pass over all heads
  Spread ns_per_token;        // per token and KV head; prefill: per query row and KV head
  Spread gb_per_second;       // of cache read
  Spread share_of_bandwidth;  // against plain reads of as many bytes, taken in turn with the passes
  // Decode of codes: time over the time that the same tokens in f16 take at the measured bandwidth.
  Spread share_of_f16_time;
};

struct KernelBenchOptions {
  int n_threads = 2;
  int repetitions = 11;
  int n_tokens = 7680;
  HeadShape shape = {64, 64, 3};
  int n_decode_heads = 90;  // 90 x 7,680 tokens in f16 are 177 MB
  int n_prefill_heads = 3;  // of one layer
  int prefill_chunk = 512;
  std::vector<std::string> codecs = {
      "int2", "int4",  "k3v2",  "k4v4",  "q8_0",   "q4_0",
      "q4_1", "q8_0r", "q4_0r", "q4_1r", "kivi-2", "kivi-4"};  // those of them that take the shape
  std::vector<std::string> targets;                            // empty: all of this machine but the reference
  bool decode = true;
  bool prefill = true;
};

struct KernelBench {
  Spread read_gb_per_second;  // all threads, over a buffer of the f16 cache's size
  std::vector<KernelBenchRow> rows;
};

// REQUIRES: nothing else uses the kernels meanwhile; the target is put back afterwards.
KernelBench bench_kernels(const KernelBenchOptions& options);

}  // namespace qevict
