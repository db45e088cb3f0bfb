// The tensors of a model where ggml wants them: as mapped from the file, or copied into one of its repacked buffer
// types. Which one is chosen as llama.cpp chooses (llama-model-loader.cpp), so that matmuls are as fast.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/gguf_file.h"
#include "model/matrix.h"

namespace qevict {

struct LayerWeights {
  ggml_tensor* attn_norm = nullptr;
  Matrix wqkv;  // fused, in the file or by us; then wq, wk, wv are empty
  ggml_tensor* wqkv_b = nullptr;
  Matrix wq;
  Matrix wk;
  Matrix wv;
  ggml_tensor* wq_b = nullptr;
  ggml_tensor* wk_b = nullptr;
  ggml_tensor* wv_b = nullptr;
  ggml_tensor* q_norm = nullptr;
  ggml_tensor* k_norm = nullptr;
  Matrix wo;
  ggml_tensor* wo_b = nullptr;
  ggml_tensor* ffn_norm = nullptr;
  Matrix ffn_gate_up;  // fused by us; then the next two are empty
  Matrix ffn_gate;
  ggml_tensor* ffn_gate_b = nullptr;
  Matrix ffn_up;
  ggml_tensor* ffn_up_b = nullptr;
  Matrix ffn_down;
  ggml_tensor* ffn_down_b = nullptr;
};

struct Weights {
  ggml_tensor* token_embd = nullptr;
  ggml_tensor* output_norm = nullptr;
  Matrix output;  // where the file has none: token_embd, maybe in a repacked copy
  ggml_tensor* output_b = nullptr;
  ggml_tensor* rope_freqs = nullptr;
  std::vector<LayerWeights> layers;
};

// Owns the buffers. Tensors are asked for by name and shape, then placed by load(); the first thing that does not fit
// is remembered.
class WeightLoader {
 public:
  explicit WeightLoader(const GgufFile& file);
  ~WeightLoader();

  // A matrix [n_in] -> [n_out], for a matmul. Missing: an error, or empty if optional.
  Matrix matrix(const std::string& name, std::int64_t n_in, std::int64_t n_out, bool optional = false);
  // Several matrices of one input as one, their outputs behind each other: fewer operations, and the input is quantized
  // once. Empty, with nothing asked for, unless all are in the file, of one type, and repacked anyway.
  Matrix stacked(std::span<const std::string> names, std::int64_t n_in, std::span<const std::int64_t> n_out);
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  // A vector of f32: a norm's weight (multiplied) or a bias (added).
  ggml_tensor* norm(const std::string& name, std::int64_t n);
  ggml_tensor* bias(const std::string& name, std::int64_t n);               // optional
  ggml_tensor* frequency_factors(const std::string& name, std::int64_t n);  // optional
  // Rows looked up by token.
  ggml_tensor* embedding(const std::string& name, std::int64_t n_embd, std::int64_t n_vocab);
  // A tied output head: the embedding once more, as a matmul's weight.
  Matrix tied_head(ggml_tensor* embedding);

  // Tensors of the file that nobody asked for would change what the model computes: refused by name.
  void refuse_unused();
  // Places all tensors: maps or copies them.
  void load();

  const std::optional<Error>& error() const { return error_; }
  std::size_t mapped_bytes() const { return mapped_bytes_; }
  std::size_t repacked_bytes() const { return repacked_bytes_; }
  // Names of the repacked buffer types in use.
  std::vector<std::string> repacked_buffers() const;

 private:
  struct Group;  // tensors of one buffer type

  // The file's tensor, checked; null if it is missing or does not fit.
  const TensorEntry* find(const std::string& name, std::int64_t ne0, std::int64_t ne1, ggml_op op, bool optional);
  ggml_tensor* create(const std::string& name, std::int64_t ne0, std::int64_t ne1, ggml_op op, bool optional);
  struct Placement {
    ggml_backend_buffer_type_t buffers;
    ggml_type type;
  };
  Placement placement_of(const TensorEntry& entry, ggml_op op) const;
  Matrix place(std::span<const TensorEntry* const> entries, ggml_op op);
  ggml_backend_buffer_type_t choose(const TensorEntry& entry, ggml_type type, ggml_op op) const;
  ggml_tensor* new_offsets(std::int64_t n_in, std::int64_t n_out);
  Group& group_of(ggml_backend_buffer_type_t type);
  void map_group(Group& group);
  void copy_group(Group& group);
  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }

  const GgufFile& file_;
  ggml_backend_dev_t device_;
  std::vector<ggml_backend_buffer_type_t> candidates_;  // best first, the plain CPU type last
  std::vector<std::unique_ptr<Group>> groups_;
  ggml_context_ptr offsets_;  // of converted matrices
  ggml_backend_buffer_ptr offsets_buffer_;
  std::vector<std::string> used_;
  std::optional<Error> error_;
  std::size_t mapped_bytes_ = 0;
  std::size_t repacked_bytes_ = 0;
};

}  // namespace qevict
