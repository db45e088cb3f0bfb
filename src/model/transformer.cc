#include <cmath>
#include <span>

#include "base/check.h"
#include "model/keys.h"
#include "model/loaded_model.h"

namespace qevict {
namespace {

Result<const Arch*> arch_of(const GgufFile& file) {
  auto name = file.text("general.architecture");
  if (!name) return std::move(name).error();
  if (!name->has_value())
    return io_error("model file '{}' is incomplete: key 'general.architecture' is missing", file.path());
  const Arch* arch = find_arch(**name);
  if (arch == nullptr)
    return unsupported("model '{}' has architecture '{}'; supported: {}", file.path(), **name,
                       fmt::join(supported_architectures(), ", "));
  return arch;
}

Result<std::span<const float>> frequency_factors(const GgufFile& file, const Weights& weights) {
  if (weights.rope_freqs == nullptr) return std::span<const float>();
  const TensorEntry& entry = *file.find(ggml_get_name(weights.rope_freqs));
  const std::span factors(reinterpret_cast<const float*>(file.data(entry)), entry.bytes / sizeof(float));
  for (const float factor : factors)
    if (!(std::isfinite(factor) && factor > 0.0f))
      return io_error("model file '{}' is damaged: tensor '{}' holds the RoPE frequency factor {}", file.path(),
                      entry.name, factor);
  return factors;
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const std::string& path) {
  auto file = GgufFile::open(path);
  if (!file) return std::move(file).error();
  auto arch = arch_of(**file);
  if (!arch) return std::move(arch).error();

  Keys keys(**file, std::string((*arch)->name));
  Hparams hparams = read_hparams(keys, (*arch)->rope_neox);
  if (keys.error()) return *keys.error();

  std::unique_ptr<LoadedModel> model(new LoadedModel(std::move(*file), *arch, std::move(hparams)));
  WeightLoader& loader = model->loader_;
  model->arch_->bind(loader, model->hparams_, model->weights_);
  loader.refuse_unused();
  loader.load();
  if (loader.error()) return *loader.error();

  auto factors = frequency_factors(*model->file_, model->weights_);
  if (!factors) return std::move(factors).error();
  model->hparams_.shape.rope = rope_of(model->hparams_.rope, *factors);
  return model;
}

std::string LoadedModel::backend() const {
  const std::vector<std::string> repacked = loader_.repacked_buffers();
  return repacked.empty() ? "CPU" : fmt::format("CPU ({})", fmt::join(repacked, ", "));
}

Result<std::unique_ptr<Transformer>> Transformer::load(const std::string& path) {
  auto model = LoadedModel::load(path);
  if (!model) return std::move(model).error();
  return std::unique_ptr<Transformer>(std::move(*model));
}

}  // namespace qevict
