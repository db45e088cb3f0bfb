// A plain prefill, layer by layer, that keeps every layer's keys, values and last queries.
#include <algorithm>

#include "base/check.h"
#include "codec/nuq.h"
#include "codec/zip.h"
#include "engine/model_parts.h"
#include "eval/captured_layer.h"
#include "eval/codec_error.h"
#include "ranking/probes.h"

namespace qevict {
namespace {

// ZipCache's saliency of one KV head's tokens, from the rows of its probes.
std::vector<float> saliency_of(const AttentionSample& sample, const ModelShape& shape, int kv_head,
                               const std::vector<float>& queries) {
  const std::size_t n = static_cast<std::size_t>(sample.n_tokens()), dim = static_cast<std::size_t>(sample.key_dim);
  const int group = shape.n_heads / shape.n_kv_heads;
  const std::vector<int> positions = zip_probes(static_cast<int>(n), kProbeSeed);
  std::vector<float> of_head;  // [probes][group][dim]
  std::vector<int> seen;
  for (const int position : positions) {
    const auto first = (static_cast<std::size_t>(position) * static_cast<std::size_t>(shape.n_heads) +
                        static_cast<std::size_t>(kv_head * group)) *
                       dim;
    const auto query = std::span(queries).subspan(first, static_cast<std::size_t>(group) * dim);
    of_head.insert(of_head.end(), query.begin(), query.end());
    seen.insert(seen.end(), static_cast<std::size_t>(group), position + 1);
  }
  std::vector<float> rows(seen.size() * n);
  attend_rows(sample.key_dim, sample.keys, of_head, seen, shape.attention_scale, rows);
  std::vector<ZipProbe> probes;
  for (std::size_t i = 0; i < positions.size(); ++i) {  // summed into the first query head's row
    const std::span<float> sum = std::span(rows).subspan(i * static_cast<std::size_t>(group) * n, n);
    for (std::size_t g = 1; g < static_cast<std::size_t>(group); ++g)
      for (std::size_t t = 0; t < n; ++t) sum[t] += rows[(i * static_cast<std::size_t>(group) + g) * n + t];
    probes.push_back({positions[i], sum.first(static_cast<std::size_t>(positions[i]) + 1)});
  }
  std::vector<float> scores(n);
  zip_saliency(probes, ZipNormalisation::visible_probes, scores);
  return scores;
}

}  // namespace

Result<AttentionSet> capture_attention(const Model& model, std::span<const Token> tokens, int n_rows, int n_threads) {
  const Transformer& transformer = *model.parts().transformer;
  const ModelShape& shape = transformer.shape();
  const auto n = tokens.size(), width = static_cast<std::size_t>(shape.n_embd);
  if (n < 32 || static_cast<int>(n) > shape.n_ctx_train || n_rows < 1 || static_cast<std::size_t>(n_rows) > n) {
    return invalid("{} tokens cannot be captured: give 32 to {}", n, shape.n_ctx_train);
  }
  Result<std::unique_ptr<Runner>> runner = Runner::create(transformer, n_threads, kCaptureChunk);
  if (!runner) return runner.error();
  std::vector<float> hidden(n * width);
  if (Result<void> embedded = (*runner)->embed(tokens, hidden); !embedded) return embedded.error();
  CapturedLayer captured(shape, static_cast<int>(n));
  AttentionSet set{.name = "captured", .rope = shape.rope, .n_kv_heads = shape.n_kv_heads, .samples = {}};
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    if (Result<void> run = capture_layer(**runner, layer, hidden, shape.n_embd, captured); !run) return run.error();
    std::vector<float> all_values;
    for (int h = 0; h < shape.n_kv_heads; ++h) {
      const std::vector<float> values = floats_of(captured.layer().values(h), n * dim);
      all_values.insert(all_values.end(), values.begin(), values.end());
    }
    std::vector<float> value_ranges(2 * n);
    nuq_value_ranges(all_values, shape.n_kv_heads, shape.head_dim, value_ranges);
    const int group = shape.n_heads / shape.n_kv_heads;
    for (int h = 0; h < shape.n_kv_heads; ++h) {
      AttentionSample sample{.key_dim = shape.head_dim, .value_dim = shape.head_dim};
      sample.keys = floats_of(captured.layer().keys(h), n * dim);
      sample.values = floats_of(captured.layer().values(h), n * dim);
      for (std::size_t row = n - static_cast<std::size_t>(n_rows); row < n; ++row)
        for (int g = 0; g < group; ++g) {
          const std::size_t from =
              (row * static_cast<std::size_t>(shape.n_heads) + static_cast<std::size_t>(h * group + g)) * dim;
          for (std::size_t c = 0; c < dim; ++c)
            sample.queries.push_back(captured.queries()[from + c] * shape.attention_scale);
        }
      sample.scores = saliency_of(sample, shape, h, captured.queries());
      sample.value_ranges = value_ranges;
      set.samples.push_back(std::move(sample));
    }
  }
  return set;
}

}  // namespace qevict
