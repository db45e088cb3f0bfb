// The bytes of the cache over several sequences of one method (evaluation.md 5.2).
#pragma once

#include <algorithm>
#include <cstdint>

#include "qevict/session.h"

namespace qevict {

struct KvUse {
  double ratio_peak = 0;   // largest of any sequence, against an f16 cache of the whole sequence
  double ratio_mean = 0;   // mean over sequences of that over their steps, against the tokens so far
  double ratio_final = 0;  // of the last sequence
  // Of the sequence with the most bytes: the cache, an f16 cache, the budget asked for and in force.
  std::size_t bytes_peak = 0, bytes_full = 0, budget_bytes = 0, budget_effective = 0;
  std::int64_t promotions = 0, demotions = 0, evictions = 0;
  int n_sequences = 0;

  // report: of a session at the end of a sequence.
  void add(const CacheReport& report) {
    ratio_peak = std::max(ratio_peak, report.ratio_peak);
    ratio_mean += (report.ratio_mean - ratio_mean) / ++n_sequences;
    ratio_final = static_cast<double>(report.bytes.total()) / static_cast<double>(report.bytes_full);
    if (report.bytes_peak >= bytes_peak) {
      bytes_peak = report.bytes_peak;
      bytes_full = report.bytes_full;
      budget_bytes = report.budget_bytes;
      budget_effective = report.budget_effective;
    }
    promotions += report.promotions;
    demotions += report.demotions;
    evictions += report.evictions;
  }
};

}  // namespace qevict
