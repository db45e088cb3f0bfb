// Sampling text from a session.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "qevict/session.h"

namespace qevict {

struct SamplerOptions {
  float temperature = 0.8f;  // >= 0; 0 is greedy
  int top_k = 40;            // 0: off
  float top_p = 0.95f;       // (0, 1]; 1: off
  float min_p = 0.05f;       // [0, 1]; 0: off
  float repeat_penalty = 1;  // > 0; 1: off
  int repeat_last_n = 64;    // tokens the penalty looks back over
  std::uint32_t seed = 0;
};

struct GenerateOptions {
  int max_new = -1;  // -1: until the end of text or of the context
  SamplerOptions sampling;
  bool ignore_eos = false;
};

enum class StopReason { end_of_text, max_new, context_full, interrupted };

struct Generation {
  std::vector<Token> tokens;  // sampled, an end-of-text token included
  std::string text;           // valid UTF-8
  StopReason stop = StopReason::max_new;
  int prompt_tokens = 0;
  double prefill_ms = 0;  // prompt through all layers, compression included
  double ttft_ms = 0;     // to the first sampled token
  double decode_ms = 0;   // from the first sampled token to the last
  double prefill_tps() const { return prefill_ms > 0 ? prompt_tokens * 1e3 / prefill_ms : 0; }
  // Tokens after the first, over the time they took.
  double decode_tps() const {
    return decode_ms > 0 && tokens.size() > 1 ? static_cast<double>(tokens.size() - 1) * 1e3 / decode_ms : 0;
  }
};

struct GenerateCallbacks {
  std::function<bool(std::string_view)> text;  // complete UTF-8 pieces as they come; false stops
  Session::Progress progress;                  // of the prefill; false stops
  std::function<bool()> stop;                  // asked before each token; true stops
};

// Feeds `prompt`, samples until a stop, and feeds each sampled token but the last. An interruption is not an error: it
// returns what was generated with StopReason::interrupted.
Result<Generation> generate(const Model& model, Session& session, std::span<const Token> prompt,
                            const GenerateOptions& options, const GenerateCallbacks& callbacks = {});

}  // namespace qevict
