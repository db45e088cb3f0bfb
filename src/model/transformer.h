// A decoder-only transformer from a GGUF file: ggml does its matmuls, norms and RoPE; attention is the caller's.
//
// The model never learns what a tier is. One architecture = one file (llama.cc, qwen2.cc, ...) and one row of kArchs
// (arch.cc). This folder is the only one that includes ggml's or llama's headers; none of them appears here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rope.h"
#include "qevict/model.h"  // supported_architectures
#include "qevict/result.h"

namespace qevict {

// What the file says of the model. All layers alike; anything else is refused at load.
struct ModelShape {
  std::string architecture;  // "llama"
  std::string name;          // general.name, may be empty
  std::string weights;       // main weight type, "Q4_1"
  int n_layers = 0;
  int n_embd = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;  // keys and values alike
  int n_vocab = 0;
  int n_ctx_train = 0;
  float attention_scale = 0;  // multiplies q.k
  Rope rope;
};

// Attention as the graph calls it, from every one of ggml's threads: thread in [0, n_threads). Implementations must not
// throw. Between two calls on a line below lies a barrier; q, k and v keep their place until the second call returns.
//   decode:  decode_partial -> decode_merge
//   prefill: prefill_store -> prefill_attend
// Shapes, contiguous, fp32: q [n_tokens][n_heads][head_dim], k and v [n_tokens][n_kv_heads][head_dim], out as q. q and
// k are after RoPE; nothing is scaled yet.
class Attention {
 public:
  virtual ~Attention() = default;
  virtual void decode_partial(int layer, const float* q, const float* k, const float* v, int thread,
                              int n_threads) noexcept = 0;
  virtual void decode_merge(int layer, float* out, int thread, int n_threads) noexcept = 0;
  virtual void prefill_store(int layer, const float* k, const float* v, int n_tokens, int thread,
                             int n_threads) noexcept = 0;
  virtual void prefill_attend(int layer, const float* q, int n_tokens, float* out, int thread,
                              int n_threads) noexcept = 0;
};

// Loaded weights, shared by any number of runners; immutable.
class Transformer {
 public:
  virtual ~Transformer() = default;
  // Refuses by name, listing what is supported: other architectures, experts, sliding-window layers, head sizes, files
  // that are missing, cut, empty or inconsistent. Never lets ggml abort on a damaged file.
  static Result<std::unique_ptr<Transformer>> load(const std::string& path);

  virtual const ModelShape& shape() const = 0;
  virtual std::size_t weight_bytes() const = 0;
  virtual std::size_t mapped_bytes() const = 0;    // of that, used as mapped from the file
  virtual std::size_t repacked_bytes() const = 0;  // of that, copied into ggml's repacked types
  virtual std::string backend() const = 0;         // "CPU", with the repack buffer's name if there is one
};

// Runs the graphs of one session. Not thread-safe; one per session. Same inputs, same numbers, whatever n_threads.
// Numbers that are not finite are an `internal` error that names the layer; the runner can be used again after it.
class Runner {
 public:
  virtual ~Runner() = default;
  // n_threads: 1 to 512. max_chunk: most tokens of one prefill call (512). The model must outlive the runner.
  static Result<std::unique_ptr<Runner>> create(const Transformer& model, int n_threads, int max_chunk);

  // One token at one position through all layers; logits: [n_vocab], written. The graph is built once.
  virtual Result<void> decode(std::int32_t token, std::int32_t position, Attention& attention,
                              std::span<float> logits) = 0;
  // Embeds tokens into hidden: [tokens][n_embd].
  virtual Result<void> embed(std::span<const std::int32_t> tokens, std::span<float> hidden) = 0;
  // Runs hidden (rows of consecutive positions from first_position, at most max_chunk) through one layer, in place.
  // last_row_only: only the last row of the result is wanted (the rest of `hidden` is then left unspecified).
  virtual Result<void> layer(int layer, std::span<float> hidden, std::int32_t first_position, bool last_row_only,
                             Attention& attention) = 0;
  // As layer(), for rows of different sequences that are all at one position. The attention's prefill_* calls are made.
  virtual Result<void> layer_of_sequences(int layer, std::span<float> hidden, std::int32_t position,
                                          Attention& attention) = 0;
  // Final norm and output head: [rows][n_embd] -> [rows][n_vocab], at most max_chunk rows.
  virtual Result<void> head(std::span<const float> hidden, std::span<float> logits) = 0;
  // ||V W_O||_1 of values, mean over the query heads of their KV head, W_O the part of the layer's output projection
  // that multiplies the query head. For each KV head of the layer values [n][head_dim] -> norms [n]; n may differ and
  // be 0.
  virtual Result<void> projected_norms(int layer, std::span<const std::span<const float>> values,
                                       std::span<const std::span<float>> norms) = 0;
  // The matrix products of a decode step and nothing else, on whatever its buffers hold: to be timed.
  virtual Result<void> decode_matmuls() = 0;
  // Calls work on every one of the threads at once, and returns when all have. It must not throw.
  using Work = std::function<void(int thread, int n_threads)>;
  virtual Result<void> on_all_threads(const Work& work) = 0;
  // Bytes of compute buffers, graphs included.
  virtual std::size_t workspace_bytes() const = 0;
};

}  // namespace qevict
