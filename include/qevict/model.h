// A GGUF model: its weights, vocabulary and chat template. Immutable once loaded; any number of sessions may share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qevict/result.h"

namespace qevict {

using Token = std::int32_t;

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct ModelInfo {
  std::string path;
  std::string architecture;   // "llama"
  std::string name;           // general.name of the file
  std::string weights;        // main weight type, "Q4_1"
  std::string backend;        // "CPU", with ggml's repack buffers in use
  std::string chat_template;  // "file", the name given, or "none"
  int n_layers = 0;
  int n_embd = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int n_vocab = 0;
  int n_ctx_train = 0;
  std::size_t weight_bytes = 0;
  std::size_t mapped_bytes = 0;        // of those, used as mapped from the file
  std::size_t repacked_bytes = 0;      // of those, copied into repacked types
  std::size_t kv_bytes_per_token = 0;  // of an f16 cache
};

struct ModelOptions {
  std::string chat_template;  // empty: the file's own; else a Jinja source or a name llama.cpp knows ("chatml")
};

class Model {
 public:
  // Errors: missing, cut, empty or inconsistent file; an architecture or shape that is not supported, by name.
  static Result<Model> load(const std::string& path, const ModelOptions& options = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelInfo& info() const;

  // add_special: start token where the file says so (never doubled). parse_special: "<|im_start|>" in text is a token.
  Result<std::vector<Token>> tokenize(std::string_view text, bool add_special, bool parse_special) const;
  // Bytes of one token, possibly part of a character; control tokens give nothing unless `special`.
  std::string piece(Token token, bool special = false) const;
  bool ends_generation(Token token) const;
  // The conversation as the model's template writes it; add_assistant: end with the assistant's turn marker.
  Result<std::string> apply_template(std::span<const ChatMessage> messages, bool add_assistant) const;

  // The engine's view of the parts; not part of the stable API.
  struct Parts;
  const Parts& parts() const { return *parts_; }

 private:
  explicit Model(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

std::vector<std::string_view> supported_architectures();

}  // namespace qevict
