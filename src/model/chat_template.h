// A model's chat template: Jinja through llama.cpp's own engine where libllama-common is there, else the templates that
// llama.h recognises.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "model/text.h"

struct llama_model;

namespace qevict {

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;
  // choice: empty = the model's own; else Jinja source, or a name llama.cpp knows. The model must outlive the result.
  static Result<std::unique_ptr<ChatTemplate>> create(const llama_model* model, const std::string& choice);
  // Thread-safe. Without the start token where the tokenizer adds it.
  virtual Result<std::string> apply(std::span<const ChatMessage> messages, bool add_assistant) const = 0;
};

}  // namespace qevict
