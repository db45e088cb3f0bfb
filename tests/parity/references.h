// What the parity, golden and quality tests share: the f32 copy of the default model, the text, and how logits compare.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "qevict/qevict.h"

namespace qevict {

using Logits = std::vector<std::vector<float>>;  // after the prompt and after each further token

// The default model in f32, written on first use to QEVICT_TEST_SCRATCH and kept there.
std::string f32_copy();
const Model& f32_model();
// tests/data/prose.txt as the default model's tokens, with its start token.
std::span<const Token> prose();

Session open_session(const Model& model, const SessionOptions& options);
// Feeds prompt, then `tokens` one by one; the logits before each of them (and so none after the last).
Logits teacher_forced(Session& session, std::span<const Token> prompt, std::span<const Token> tokens);

std::size_t best_of(std::span<const float> logits);
// Of the best over the second best.
float lead_of(std::span<const float> logits);

struct Difference {
  float max_logit = 0;  // largest |Δ| of any logit
  double mean_kl = 0;   // KL(p || q) in nats, mean over rows
  int same_top = 0;     // rows whose best token is the same, before the first that differs
  float lead = 0;       // of p's best logit over its second where the first one differs
};
Difference difference(const Logits& p, const Logits& q);

}  // namespace qevict
