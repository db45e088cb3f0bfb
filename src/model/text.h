// Text in and out: tokenizer, chat template and samplers of a GGUF model, through llama.h (and, for Jinja templates,
// libllama-common in chat_template.cc alone).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qevict/generate.h"  // SamplerOptions
#include "qevict/model.h"     // ChatMessage
#include "qevict/result.h"

namespace qevict {

// Vocabulary and template of one file; immutable, thread-safe.
class Vocabulary {
 public:
  virtual ~Vocabulary() = default;
  // Loads only the vocabulary (llama's vocab_only). chat_template: empty = the file's own; else a Jinja source or a
  // name llama.cpp knows ("chatml"); an unknown one is an error naming it.
  static Result<std::unique_ptr<Vocabulary>> load(const std::string& path, const std::string& chat_template);

  virtual int size() const = 0;
  // add_special: put the model's start token where its file says so. parse_special: read "<|im_start|>" in the text as
  // a token. A start token already written in the text is not doubled. Invalid UTF-8 is an error naming the byte
  // offset.
  virtual Result<std::vector<std::int32_t>> tokenize(std::string_view text, bool add_special,
                                                     bool parse_special) const = 0;
  // Bytes of one token; may be part of a UTF-8 character. special: render control tokens as text instead of nothing.
  virtual std::string piece(std::int32_t token, bool special) const = 0;
  virtual bool ends_generation(std::int32_t token) const = 0;
  // The whole conversation as the model's template writes it. add_assistant: end with the assistant's turn marker.
  virtual Result<std::string> apply_template(std::span<const ChatMessage> messages, bool add_assistant) const = 0;
};

// llama.cpp's sampler chain, in its order.
class Sampler {
 public:
  virtual ~Sampler() = default;
  static Result<std::unique_ptr<Sampler>> create(const SamplerOptions& options);
  // Chooses from logits [n_vocab] (may be changed) and remembers the choice for the repeat penalty.
  virtual std::int32_t sample(std::span<float> logits) = 0;
  // Tells of a token that was not sampled (prompt).
  virtual void accept(std::int32_t token) = 0;
  // Excludes tokens (e.g. all that end a generation, for --ignore-eos).
  virtual void ban(std::span<const std::int32_t> tokens) = 0;
};

// Silences llama.cpp's own log lines below `error`, whose text is kept for error messages. Called by load().
void route_llama_log();

// Joins pieces into valid UTF-8: push() returns what is complete so far, flush() the rest with U+FFFD for a cut
// character or invalid bytes.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string flush();

 private:
  std::string pending_;
};

}  // namespace qevict
