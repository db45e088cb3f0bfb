// The same model through libllama's own context.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "qevict/model.h"

namespace qevict {

struct LlamaOptions {
  bool flash_attention = false;
  int n_ctx = 1024;
  int n_threads = 1;
};

// One sequence. Throws std::runtime_error if libllama refuses anything.
class LlamaSequence {
 public:
  LlamaSequence(const std::string& path, const LlamaOptions& options);
  ~LlamaSequence();
  LlamaSequence(const LlamaSequence&) = delete;
  LlamaSequence& operator=(const LlamaSequence&) = delete;
  // Feeds tokens; logits of the last one.
  std::vector<float> feed(std::span<const Token> tokens);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qevict
