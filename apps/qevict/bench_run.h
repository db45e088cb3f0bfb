// The measuring loop of `qevict bench`: engines in turn (A B A B ...), repetition after repetition, at one depth.
#pragma once

#include <memory>
#include <vector>

#include "bench_samples.h"
#include "progress.h"

namespace qevict::app {

struct BenchPlan {
  int n_prompt = 512;  // 0: no prompt is timed
  int n_gen = 32;      // 0: nothing is decoded
  std::vector<int> depths = {0};
  int repetitions = 5;  // after one that is thrown away
  // Decode behind the timed prompt instead of at the depth: one prefill a repetition gives both figures.
  bool after_prompt = false;
  // Decode on from the last repetition's steps instead of filling the cache anew: the depth drifts by n_gen each time.
  bool keep_fill = false;

  // Most tokens a cache holds at that depth.
  std::int64_t context_tokens(int depth) const;
  std::int64_t longest_context() const;
};

std::vector<Token> random_tokens(int count, int n_vocab);

// Waits until this process's other threads sleep: those of the engine measured before poll for more work for a while,
// and would take the cores of the next one. Gives up after some seconds.
void wait_until_quiet();

class BenchRun {
 public:
  BenchRun(const BenchPlan& plan, int n_vocab, std::vector<std::unique_ptr<BenchEngine>> engines);

  // One entry for every engine, in their order. After Ctrl-C of the repetitions that every engine completed; error
  // `interrupted` if there is none.
  Result<std::vector<Measured>> at_depth(int depth);
  void finish() { bar_.finish(); }

 private:
  Result<void> repeat(int depth, bool counts, std::vector<Measured>& all);
  Result<void> measure(std::size_t engine, int depth, Samples* samples);
  Result<void> measure_prompt(BenchEngine& engine, int depth, Samples* samples);
  Result<void> measure_decode(std::size_t engine, int depth, Samples* samples);
  BenchProgress progress_over(double tokens);
  double work_of(int depth) const;

  const BenchPlan& plan_;
  std::vector<std::unique_ptr<BenchEngine>> engines_;
  std::vector<int> kept_depth_;  // of each engine: what its cache was last filled to for keep_fill, -1: nothing
  std::vector<Token> tokens_;
  double work_ = 0;
  double work_done_ = 0;
  ProgressBar bar_{"measuring"};
};

}  // namespace qevict::app
