#include "engine/session_options.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/check.h"

namespace qevict {

CacheShape cache_shape_of(const ModelShape& model) {
  return {.n_layers = model.n_layers,
          .n_kv_heads = model.n_kv_heads,
          .key_dim = model.head_dim,
          .value_dim = model.head_dim,
          .group = model.n_heads / model.n_kv_heads};
}

Result<void> complete(SessionOptions& options, const ModelShape& model) {
  const int n_ctx_train = model.n_ctx_train;
  if (options.n_ctx == 0) options.n_ctx = n_ctx_train;
  if (options.n_ctx < 1) return invalid("the context must hold at least 1 token, got {}", options.n_ctx);
  if (options.n_ctx > n_ctx_train) {
    return invalid("a context of {} tokens is more than the {} this model was trained for", options.n_ctx, n_ctx_train);
  }
  if (options.n_threads == 0) options.n_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (options.n_threads < 1 || options.n_threads > 512) {
    return invalid("the number of threads must be between 1 and 512, got {}", options.n_threads);
  }
  if (options.chunk_tokens < 1 || options.chunk_tokens > 4096) {
    return invalid("prompt chunks must have between 1 and 4096 tokens, got {}", options.chunk_tokens);
  }
  return {};
}

NuqModel nuq_model(const ModelInfo& info) {
  std::error_code ignored;
  return {.name = info.name,
          .n_layers = info.n_layers,
          .n_kv_heads = info.n_kv_heads,
          .key_dim = info.head_dim,
          .value_dim = info.head_dim,
          .file_bytes = std::filesystem::file_size(info.path, ignored)};
}

Result<std::shared_ptr<const NuqCalibration>> calibration_for(const CacheSettings& settings, const Model& model) {
  std::shared_ptr<const NuqCalibration> none;
  const std::string path = nuq_path(model.info().path);
  std::error_code ignored;
  if (settings.rule.codec == nullptr || !settings.rule.codec->uses_value_ranges ||
      !std::filesystem::exists(path, ignored)) {
    return none;
  }
  Result<NuqCalibration> read = read_nuq(path, nuq_model(model.info()));
  if (!read) return read.error();
  return std::shared_ptr<const NuqCalibration>(std::make_shared<NuqCalibration>(*std::move(read)));
}

void connect(BudgetedCache& cache, Runner& runner, const ModelShape& model,
             const std::shared_ptr<const NuqCalibration>& calibration) {
  if (calibration) {
    cache.use_head_data(
        [&](int layer, int kv_head) { return calibration->head_data(*cache.tiers().rule().codec, layer, kv_head); });
  }
  cache.use_team([&runner](const Runner::Work& work) { return runner.on_all_threads(work); });
  cache.use_model(model.attention_scale, [&runner](int layer, std::span<const std::span<const Half>> values,
                                                   std::span<const std::span<float>> norms) {
    std::vector<std::vector<float>> plain(values.size());
    for (std::size_t h = 0; h < values.size(); ++h)
      std::ranges::transform(values[h], std::back_inserter(plain[h]), [](Half v) { return to_float(v); });
    return runner.projected_norms(layer, std::vector<std::span<const float>>(plain.begin(), plain.end()), norms);
  });
}

std::vector<Setting> settings_of(const CacheSettings& settings, const SessionOptions& options,
                                 const std::shared_ptr<const NuqCalibration>& calibration) {
  std::vector<Setting> result = settings.list();
  if (settings.rule.codec != nullptr && settings.rule.codec->uses_value_ranges)
    result.push_back(
        {"calibration", calibration ? "from the file beside the model" : "none: NormalFloat, the prompt's ranges"});
  result.push_back({"ctx-size", std::to_string(options.n_ctx)});
  result.push_back({"threads", std::to_string(options.n_threads)});
  return result;
}

}  // namespace qevict
