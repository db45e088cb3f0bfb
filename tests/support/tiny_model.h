// Writes small random models as GGUF, with ggml's own writer, that libllama loads too: for parity tests and for files
// that are damaged on purpose.
#pragma once

#include <functional>
#include <string>

struct gguf_context;

namespace qevict::testing {

enum class RopeScaling { none, linear, yarn, frequency_factors };

struct TinyModel {
  std::string architecture = "llama";  // "llama", "qwen2", "qwen3"
  int n_layers = 2;
  int n_heads = 3;
  int n_kv_heads = 1;
  int head_dim = 64;
  int n_ff = 256;
  int n_vocab = 320;  // >= 262: a SentencePiece vocabulary of 3 control tokens, 256 bytes, " ", "a", "b", then fillers
  int n_ctx_train = 512;
  RopeScaling scaling = RopeScaling::none;
  bool qkv_bias = false;    // with key biases of large mean, as Qwen 2 has
  bool llama_bias = false;  // biases on attn_output and the FFN (llama only)
  bool fused_qkv = false;
  bool tied_head = false;
  std::string matrices = "f32";  // or "q8_0", "q4_1"
  unsigned seed = 1;

  // To damage the file: called with the finished metadata before it is written.
  std::function<void(gguf_context*)> edit;
  std::string without_tensor;  // left out
  std::string transposed;      // written with its two dimensions swapped
  std::string extra_tensor;    // added, one row of 32
  std::string half_tensor;     // written as f16 instead of f32

  // Writes the file; throws std::runtime_error if it cannot.
  void write(const std::string& path) const;
  std::string chat_template;  // tokenizer.chat_template, if not empty
};

}  // namespace qevict::testing
