#include "qevict/model.h"

#include "engine/model_parts.h"

namespace qevict {

Model::Model(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Result<Model> Model::load(const std::string& path, const ModelOptions& options) {
  auto parts = std::make_unique<Parts>();
  Result<std::unique_ptr<Transformer>> transformer = Transformer::load(path);
  if (!transformer) return transformer.error();
  parts->transformer = std::move(*transformer);
  Result<std::unique_ptr<Vocabulary>> vocabulary = Vocabulary::load(path, options.chat_template);
  if (!vocabulary) return vocabulary.error();
  parts->vocabulary = std::move(*vocabulary);

  const ModelShape& shape = parts->transformer->shape();
  if (parts->vocabulary->size() != shape.n_vocab) {
    return Error{Error::Kind::io, path + ": the vocabulary has " + std::to_string(parts->vocabulary->size()) +
                                      " tokens, but the embedding has " + std::to_string(shape.n_vocab) +
                                      " rows: the file is inconsistent"};
  }
  ModelInfo& info = parts->info;
  info.path = path;
  info.architecture = shape.architecture;
  info.name = shape.name;
  info.weights = shape.weights;
  info.backend = parts->transformer->backend();
  info.chat_template = options.chat_template.empty() ? "from the file" : options.chat_template;
  info.n_layers = shape.n_layers;
  info.n_embd = shape.n_embd;
  info.n_heads = shape.n_heads;
  info.n_kv_heads = shape.n_kv_heads;
  info.head_dim = shape.head_dim;
  info.n_vocab = shape.n_vocab;
  info.n_ctx_train = shape.n_ctx_train;
  info.weight_bytes = parts->transformer->weight_bytes();
  info.mapped_bytes = parts->transformer->mapped_bytes();
  info.repacked_bytes = parts->transformer->repacked_bytes();
  info.kv_bytes_per_token = static_cast<std::size_t>(shape.n_layers) * static_cast<std::size_t>(shape.n_kv_heads) *
                            static_cast<std::size_t>(shape.head_dim) * 2 * sizeof(std::uint16_t);
  return Model(std::move(parts));
}

const ModelInfo& Model::info() const { return parts_->info; }

Result<std::vector<Token>> Model::tokenize(std::string_view text, bool add_special, bool parse_special) const {
  return parts_->vocabulary->tokenize(text, add_special, parse_special);
}
std::string Model::piece(Token token, bool special) const { return parts_->vocabulary->piece(token, special); }
bool Model::ends_generation(Token token) const { return parts_->vocabulary->ends_generation(token); }
Result<std::string> Model::apply_template(std::span<const ChatMessage> messages, bool add_assistant) const {
  return parts_->vocabulary->apply_template(messages, add_assistant);
}

}  // namespace qevict
