// The one implementation of Transformer, with what the runner needs of it.
#pragma once

#include <memory>
#include <string>

#include "model/arch.h"
#include "model/gguf_file.h"
#include "model/hparams.h"
#include "model/transformer.h"
#include "model/weights.h"

namespace qevict {

class LoadedModel final : public Transformer {
 public:
  static Result<std::unique_ptr<LoadedModel>> load(const std::string& path);

  const ModelShape& shape() const override { return hparams_.shape; }
  std::size_t weight_bytes() const override { return mapped_bytes() + repacked_bytes(); }
  std::size_t mapped_bytes() const override { return loader_.mapped_bytes(); }
  std::size_t repacked_bytes() const override { return loader_.repacked_bytes(); }
  std::string backend() const override;

  const Arch& arch() const { return *arch_; }
  const Hparams& hparams() const { return hparams_; }
  const Weights& weights() const { return weights_; }
  // Raw rows of the embedding, as in the file.
  const std::byte* embedding_data() const { return file_->data(*file_->find("token_embd.weight")); }
  // Raw rows of a layer's output projection, as in the file: [n_embd] rows of n_heads * head_dim.
  const TensorEntry& output_projection(int layer) const {
    return *file_->find("blk." + std::to_string(layer) + ".attn_output.weight");
  }
  const std::byte* data(const TensorEntry& tensor) const { return file_->data(tensor); }

 private:
  LoadedModel(std::unique_ptr<GgufFile> file, const Arch* arch, Hparams hparams)
      : file_(std::move(file)), arch_(arch), hparams_(std::move(hparams)), loader_(*file_) {}

  std::unique_ptr<GgufFile> file_;
  const Arch* arch_;
  Hparams hparams_;
  WeightLoader loader_;  // owns the buffers
  Weights weights_;
};

}  // namespace qevict
