// qevict eval codec: what each codec does to attention, on synthetic data and on a text's own keys and values.
#pragma once

#include <string>

#include "options.h"

namespace qevict::app {

struct EvalCodecOptions {
  std::string text;         // file; empty: synthetic data only, and no model is loaded
  std::string calibration;  // file, of the model; empty: none
  int n_tokens = 0;         // of the text, and of each synthetic sample; 0: 1029
};

int eval_codec(Options& options, EvalCodecOptions eval);

}  // namespace qevict::app
