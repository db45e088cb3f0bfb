// What `qevict bench` can measure: a method of ours, or a rival on the same weights (rival_*.cc).
//
// Runs follow llama-bench (evaluation.md 6.2): the cache is filled to a depth, then either a prompt is read or single
// tokens are decoded, and only that is timed. Random token ids, no end of text.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "options.h"
#include "summary.h"

namespace qevict::app {

struct EngineLabel {
  std::string engine;      // "qevict"
  std::string method;      // row of the method table
  std::string kv_type;     // what the cache stores: "f16", "f16+int2"
  std::string flash_attn;  // rivals: "on", "off"; ours: "n/a"
};

struct PromptTimes {
  double prefill_ms = 0;  // through all layers, compression included
  double ttft_ms = 0;     // the same and the first sampled token
};

struct DecodeTimes {
  double fill_ms = 0;    // the depth's tokens, read from an empty cache
  double decode_ms = 0;  // all single-token steps
};

// False stops.
using BenchProgress = std::function<bool(double share)>;

class BenchEngine {
 public:
  virtual ~BenchEngine() = default;
  virtual const EngineLabel& label() const = 0;
  // Empties the cache, reads `fill` untimed, then `prompt`.
  virtual Result<PromptTimes> read_prompt(std::span<const Token> fill, std::span<const Token> prompt,
                                          const BenchProgress& progress) = 0;
  // Empties the cache, reads `fill` (one token at least), then decodes `steps` one by one.
  virtual Result<DecodeTimes> decode(std::span<const Token> fill, std::span<const Token> steps,
                                     const BenchProgress& progress) = 0;
  // Figures of the last run, for its row: cache bytes, ratios, workspace.
  virtual void add_fields(Json& row) const = 0;
};

// A row of the method table on a session of its own.
Result<std::unique_ptr<BenchEngine>> make_qevict_engine(const Model& model, const Options& options, int n_ctx);

}  // namespace qevict::app
