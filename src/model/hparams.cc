#include "model/hparams.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "base/check.h"

namespace qevict {
namespace {

constexpr std::array kHeadSizes = {64, 80, 96, 128, 256};
constexpr int kMaxLayers = 512;  // libllama's limit too
constexpr int kMaxWidth = 1 << 20;

void refuse_other_kinds(Keys& keys, int n_ctx_train) {
  const std::string& path = keys.file().path();
  if (const int experts = keys.integer("expert_count", 0, kMaxWidth, 0); experts > 0)
    keys.fail(unsupported("model '{}' is a mixture of {} experts; supported: dense models", path, experts));
  const int window = keys.per_layer("attention.sliding_window", 1, 0, 1 << 30, 0);
  if (window > 0 && window < n_ctx_train)
    keys.fail(unsupported("model '{}' has sliding-window layers ({} tokens); supported: global attention in all layers",
                          path, window));
  if (!keys.boolean("attention.causal", true))
    keys.fail(unsupported("model '{}' is not causal (an encoder); supported: decoder-only models", path));
}

int read_head_dim(Keys& keys, int n_embd, int n_heads) {
  const std::string& path = keys.file().path();
  if (!keys.has("attention.key_length") && n_embd % n_heads != 0) {
    keys.fail(io_error("model file '{}' is damaged: width {} is no multiple of its {} heads", path, n_embd, n_heads));
    return kHeadSizes.front();
  }
  const int head_dim = keys.integer("attention.key_length", 1, kMaxWidth, n_embd / n_heads);
  const int value_dim = keys.integer("attention.value_length", 1, kMaxWidth, n_embd / n_heads);
  if (head_dim != value_dim)
    keys.fail(unsupported("model '{}' has keys of {} and values of {} channels; supported: equal sizes", path, head_dim,
                          value_dim));
  if (std::find(kHeadSizes.begin(), kHeadSizes.end(), head_dim) == kHeadSizes.end())
    keys.fail(unsupported("model '{}' has head size {}; supported: {}", path, head_dim, fmt::join(kHeadSizes, ", ")));
  return head_dim;
}

int read_n_vocab(Keys& keys) {
  const GgufFile& file = keys.file();
  const TensorEntry* embedding = file.find("token_embd.weight");
  if (embedding == nullptr) {
    keys.fail(io_error("model file '{}' is incomplete: tensor 'token_embd.weight' is missing", file.path()));
    return 1;
  }
  const std::int64_t rows = embedding->ne[1];
  auto tokens = file.texts("tokenizer.ggml.tokens");
  if (!tokens) {
    keys.fail(std::move(tokens).error());
  } else if (tokens->has_value() && static_cast<std::int64_t>((*tokens)->size()) != rows) {
    keys.fail(io_error("model file '{}' is damaged: its vocabulary has {} tokens, 'token_embd.weight' {} rows",
                       file.path(), (*tokens)->size(), rows));
  }
  if (rows > (std::int64_t{1} << 24)) {
    keys.fail(io_error("model file '{}' is damaged: 'token_embd.weight' has {} rows", file.path(), rows));
    return 1;
  }
  return static_cast<int>(rows);
}

// The type that holds most bytes: "Q4_1".
std::string main_weight_type(const GgufFile& file) {
  std::array<std::size_t, GGML_TYPE_COUNT> bytes{};
  for (const TensorEntry& tensor : file.tensors()) bytes[tensor.type] += tensor.bytes;
  const auto most = std::max_element(bytes.begin(), bytes.end()) - bytes.begin();
  std::string name = ggml_type_name(static_cast<ggml_type>(most));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

}  // namespace

Hparams read_hparams(Keys& keys, bool neox) {
  Hparams h;
  ModelShape& shape = h.shape;
  shape.architecture = keys.architecture();
  auto name = keys.file().text("general.name");
  if (name) shape.name = name->value_or("");
  shape.weights = main_weight_type(keys.file());
  shape.n_ctx_train = keys.integer("context_length", 1, 1 << 30);
  shape.n_embd = keys.integer("embedding_length", 1, kMaxWidth);
  shape.n_layers = keys.integer("block_count", 1, kMaxLayers);
  shape.n_heads = keys.per_layer("attention.head_count", shape.n_layers, 1, kMaxWidth);
  shape.n_kv_heads = keys.per_layer("attention.head_count_kv", shape.n_layers, 1, kMaxWidth, shape.n_heads);
  if (shape.n_heads % shape.n_kv_heads != 0)
    keys.fail(io_error("model file '{}' is damaged: its {} heads are no multiple of its {} KV heads",
                       keys.file().path(), shape.n_heads, shape.n_kv_heads));
  refuse_other_kinds(keys, shape.n_ctx_train);
  shape.head_dim = read_head_dim(keys, shape.n_embd, shape.n_heads);
  if (std::int64_t{shape.head_dim} * shape.n_heads > kMaxWidth)
    keys.fail(
        io_error("model file '{}' is damaged: {} heads of size {}", keys.file().path(), shape.n_heads, shape.head_dim));
  shape.n_vocab = read_n_vocab(keys);
  // libllama does not read attention.scale for these architectures, so neither do we.
  shape.attention_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  h.n_ff = keys.per_layer("feed_forward_length", shape.n_layers, 1, kMaxWidth);
  h.rms_epsilon = keys.real("attention.layer_norm_rms_epsilon");
  if (h.rms_epsilon < 0.0f)
    keys.fail(io_error("model file '{}' is damaged: layer_norm_rms_epsilon is {}", keys.file().path(), h.rms_epsilon));
  h.rope = read_rope(keys, shape.head_dim, shape.n_ctx_train, neox);
  return h;
}

}  // namespace qevict
