// How a long evaluation tells where it is and is told to stop.
#pragma once

#include <functional>

#include "qevict/result.h"

namespace qevict {

// share of the work done, 0..1; false stops.
using EvalProgress = std::function<bool(double share)>;

inline Error eval_stopped() { return {Error::Kind::interrupted, "stopped before the evaluation was done"}; }

// Adds up work of a total known beforehand.
class EvalWork {
 public:
  EvalWork(double total, const EvalProgress& progress) : total_(total), progress_(progress) {}

  // False if the evaluation is to stop.
  bool done(double units) {
    done_ += units;
    return !progress_ || progress_(done_ / total_);
  }

 private:
  double total_;
  double done_ = 0;
  const EvalProgress& progress_;
};

}  // namespace qevict
