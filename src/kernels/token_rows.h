// Walks the f16 tokens of a head, over runs that may be cut at any token.
#pragma once

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/prefetch.h"

namespace qevict {

// Row pointers of consecutive tokens [begin, end), a tile at a time.
class TokenRows {
 public:
  enum class Of { keys, values };
  TokenRows(const HeadView& head, int begin, int end, Of of, int dim)
      : run_(head.f16.data()), last_run_(run_ + head.f16.size()), token_(begin), end_(end), of_(of), dim_(dim) {
    while (run_ != last_run_ && run_->first_token + run_->n_tokens <= token_) ++run_;
  }

  // Fills up to `capacity` pointers and returns how many; 0 at the end. ahead: prefetches rows that come a little
  // later, where the hardware does not see them, over the ends of pages and runs.
  int next(const Half** rows, int capacity, bool ahead = false) {
    int count = 0;
    while (count < capacity && token_ < end_ && run_ != last_run_) {
      const int within = token_ - run_->first_token;
      const int n = std::min({capacity - count, end_ - token_, run_->n_tokens - within});
      const Half* row = (of_ == Of::keys ? run_->keys : run_->values) + std::ptrdiff_t{within} * dim_;
      for (int i = 0; i < n; ++i, row += dim_) {
        rows[count++] = row;
        if (ahead && within + i + kTokensAhead < run_->n_tokens) touch(row + kTokensAhead * dim_, 1);
      }
      token_ += n;
      if (within + n == run_->n_tokens) {
        ++run_;
        if (ahead && last_run_ - run_ > kRunsAhead) touch_run(run_[kRunsAhead]);
      }
    }
    return count;
  }

 private:
  static constexpr int kRunsAhead = 3;
  static constexpr std::ptrdiff_t kTokensAhead = 64;  // within a run: over the ends of pages
  static constexpr int kShort = 64;

  __attribute__((always_inline)) void touch_run(const F16Run& run) const {
    if (run.n_tokens <= kShort) touch(of_ == Of::keys ? run.keys : run.values, run.n_tokens);
  }
  __attribute__((always_inline)) void touch(const Half* rows, int n) const {
    prefetch(rows, static_cast<std::size_t>(n) * dim_ * sizeof(Half));
  }

  const F16Run* run_;
  const F16Run* last_run_;
  int token_;
  int end_;
  Of of_;
  int dim_;
};

}  // namespace qevict
