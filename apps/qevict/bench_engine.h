// What `qevict bench` can measure: a method of ours, or a rival on the same weights (rival_*.cc).
//
// Runs follow llama-bench (evaluation.md 6.2): the cache is filled to a depth, then a prompt is read or single tokens
// are decoded, and only that is timed. Random token ids, no end of text.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "options.h"
#include "summary.h"

namespace qevict::app {

struct EngineLabel {
  std::string engine;      // "qevict", "llama.cpp"
  std::string method;      // row of the method table; rivals: "full"
  std::string kv_type;     // what the cache stores: "f16", "f16+int2"
  std::string flash_attn;  // rivals: "on", "off"; ours: "n/a"
};

struct PromptTimes {
  double prefill_ms = 0;  // through all layers, compression included
  double ttft_ms = 0;     // the same and the first sampled token
};

// Where the time of the steps went, as far as the engine can tell.
struct StepParts {
  double attention_ms = 0;
  double routing_ms = 0;    // ranking and planning
  double migration_ms = 0;  // moving and quantizing windows
  double matmul_ms = 0;     // as long as the steps' matrix products take by themselves
};

struct DecodeTimes {
  std::vector<double> step_ms;
  std::vector<bool> routed;        // of each step: windows were routed in it; empty: the engine never does
  std::optional<StepParts> parts;  // of all steps together
};

// False stops.
using BenchProgress = std::function<bool(double share)>;

class BenchEngine {
 public:
  virtual ~BenchEngine() = default;
  virtual const EngineLabel& label() const = 0;
  // Makes the cache hold these tokens and nothing else; none: empty. max_new: tokens to come, which a budget may count.
  // Milliseconds it took, if they were read from an empty cache.
  virtual Result<std::optional<double>> fill(std::span<const Token> tokens, int max_new,
                                             const BenchProgress& progress) = 0;
  // True: fill() goes back to a state it has held, at no cost, and the same to the bit.
  virtual bool goes_back() const = 0;
  // Reads a prompt behind what the cache holds.
  virtual Result<PromptTimes> read_prompt(std::span<const Token> prompt, int max_new,
                                          const BenchProgress& progress) = 0;
  // Decodes one by one behind what the cache holds, one token at least.
  virtual Result<DecodeTimes> decode(std::span<const Token> steps, const BenchProgress& progress) = 0;
  // Figures of the last run, for its row: cache bytes, ratios, workspace.
  virtual void add_fields(Json& row) const = 0;
};

// A row of the method table on a session of its own.
Result<std::unique_ptr<BenchEngine>> make_qevict_engine(const Model& model, const Options& options, int n_ctx);

}  // namespace qevict::app
