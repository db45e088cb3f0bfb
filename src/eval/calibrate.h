// KVQuant's calibration of a model over a text (codec/nuq_calibration.h): a plain prefill of samples of the text.
#pragma once

#include <span>

#include "codec/nuq_calibration.h"
#include "engine/session_options.h"  // nuq_model
#include "eval/progress.h"
#include "qevict/model.h"

namespace qevict {

struct CalibrationOptions {
  int samples = 16;          // most samples, one after the other from the text's beginning, >= 1
  int sample_tokens = 2048;  // of one; the last may be shorter
  int sink_tokens = 5;       // first ones of each sample, left out
  int n_threads = 1;
};

// Ranges: the 0.5 % and 99.5 % percentiles of each key channel before RoPE. Tables: k-means over each layer's numbers
// within their ranges, values normalised as the codec does it.
// Errors: fewer than 64 tokens; samples longer than the model's context; a model that the codecs do not take; stopped.
Result<NuqCalibration> calibrate_nuq(const Model& model, std::span<const Token> tokens,
                                     const CalibrationOptions& options, const EvalProgress& progress);

// Whether a new file can be written at `path`, to be known before the work. Errors: it exists; the system's reason.
Result<void> check_new_file(const std::string& path);

}  // namespace qevict
