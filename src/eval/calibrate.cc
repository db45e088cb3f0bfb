#include "eval/calibrate.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/part_file.h"
#include "engine/model_parts.h"
#include "engine/session_options.h"
#include "eval/captured_layer.h"

namespace qevict {
namespace {

constexpr int kFewestTokens = 64;

using Floats = std::vector<float>;

// The captured tokens of one sample behind its sinks, appended to what is collected of a layer.
struct Collected {
  std::vector<Floats> keys;  // [kv_head][tokens][dim], before RoPE
  NuqHistogram values;

  void add(const ModelShape& shape, const PrefillLayer& layer, int sinks);
};

void Collected::add(const ModelShape& shape, const PrefillLayer& layer, int sinks) {
  const auto dim = static_cast<std::size_t>(shape.head_dim), first = static_cast<std::size_t>(sinks);
  const std::size_t n = static_cast<std::size_t>(layer.size()) - first;
  keys.resize(static_cast<std::size_t>(shape.n_kv_heads));
  Floats rows;  // values [kv_head][n][dim]
  for (int h = 0; h < shape.n_kv_heads; ++h) {
    Floats key = floats_of(layer.keys(h) + first * dim, n * dim);
    for (std::size_t t = 0; t < n; ++t)
      shape.rope.unrotate(std::span(key).subspan(t * dim, dim), static_cast<double>(first + t));
    Floats& all = keys[static_cast<std::size_t>(h)];
    all.insert(all.end(), key.begin(), key.end());
    const Floats value = floats_of(layer.values(h) + first * dim, n * dim);
    rows.insert(rows.end(), value.begin(), value.end());
  }
  Floats ranges(2 * n);
  nuq_value_ranges(rows, shape.n_kv_heads, shape.head_dim, ranges);
  for (std::size_t i = 0; i * dim < rows.size(); ++i) {
    const std::span<const float> row = std::span(rows).subspan(i * dim, dim);
    const float lower = ranges[2 * (i % n)], upper = ranges[2 * (i % n) + 1];
    const NuqRange of = nuq_value_range(row, lower, upper);
    for (const float x : row)
      if (x > lower && x < upper) values.add((x - to_float(of.offset)) / to_float(of.range));
  }
}

NuqLayer calibrated(const ModelShape& shape, Collected& collected) {
  NuqLayer layer;
  NuqHistogram keys;
  Floats channel;
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  for (const Floats& head : collected.keys)
    for (std::size_t c = 0; c < dim; ++c) {
      channel.clear();
      for (std::size_t i = c; i < head.size(); i += dim) channel.push_back(head[i]);
      const float lowest = nuq_quantile(channel, kNuqTail);
      const NuqRange range = nuq_range(lowest, nuq_quantile(channel, 1.0 - kNuqTail));
      layer.ranges.push_back(range);
      const float offset = to_float(range.offset), reach = to_float(range.range);
      for (const float x : channel)
        if (x >= offset - reach && x <= offset + reach) keys.add((x - offset) / reach);
    }
  for (int bits = 2; bits <= 4; ++bits) {
    layer.key_levels[static_cast<std::size_t>(bits - 2)] = keys.levels(bits);
    layer.value_levels[static_cast<std::size_t>(bits - 2)] = collected.values.levels(bits);
  }
  return layer;
}

}  // namespace

Result<NuqCalibration> calibrate_nuq(const Model& model, std::span<const Token> tokens,
                                     const CalibrationOptions& options, const EvalProgress& progress) {
  const Transformer& transformer = *model.parts().transformer;
  const ModelShape& shape = transformer.shape();
  QEVICT_CHECK(options.samples >= 1 && options.sink_tokens >= 0, "options in their ranges");
  if (options.sample_tokens < kFewestTokens || options.sample_tokens > shape.n_ctx_train) {
    return invalid("samples of {} tokens cannot be calibrated on: give {} to {}", options.sample_tokens, kFewestTokens,
                   shape.n_ctx_train);
  }
  if (static_cast<int>(tokens.size()) < kFewestTokens) {
    return invalid("the text has {} tokens: give one of at least {}, better {}", tokens.size(), kFewestTokens,
                   options.samples * options.sample_tokens);
  }
  if (!Nuq<2>::supports({1, shape.head_dim, shape.head_dim})) {
    return unsupported("KVQuant's codecs do not take heads of {} channels", shape.head_dim);
  }
  Result<std::unique_ptr<Runner>> runner = Runner::create(transformer, options.n_threads, kCaptureChunk);
  if (!runner) return runner.error();
  std::vector<Floats> samples;  // hidden states, [tokens][n_embd] each
  const auto length = static_cast<std::size_t>(options.sample_tokens);
  while (std::ssize(tokens) > options.sink_tokens && std::ssize(samples) < options.samples) {
    const std::span<const Token> part = tokens.first(std::min(length, tokens.size()));
    tokens = tokens.subspan(part.size());
    Floats& hidden = samples.emplace_back(part.size() * static_cast<std::size_t>(shape.n_embd));
    if (Result<void> embedded = (*runner)->embed(part, hidden); !embedded) return embedded.error();
  }
  CapturedLayer captured(shape, options.sample_tokens);
  EvalWork work(static_cast<double>(samples.size()) * shape.n_layers, progress);
  NuqCalibration result{nuq_model(model.info()), {}};
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    Collected collected;
    for (Floats& hidden : samples) {
      if (Result<void> run = capture_layer(**runner, layer, hidden, shape.n_embd, captured); !run) return run.error();
      collected.add(shape, captured.layer(), options.sink_tokens);
      if (!work.done(1)) return eval_stopped();
    }
    result.layers.push_back(calibrated(shape, collected));
  }
  return result;
}

Result<void> check_new_file(const std::string& path) {
  const Result<std::string> part = new_part_file(path);
  if (!part) return part.error();
  std::error_code ignored;
  std::filesystem::remove(*part, ignored);
  return {};
}

}  // namespace qevict
