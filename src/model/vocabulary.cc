#include <limits>
#include <unordered_set>

#include "base/check.h"
#include "llama-cpp.h"
#include "model/chat_template.h"
#include "model/ggml_log.h"
#include "model/gguf_file.h"
#include "model/text.h"
#include "model/utf8.h"

namespace qevict {
namespace {

// What llama.cpp asserts (and would abort on) instead of reporting.
Result<void> check_tokens(const GgufFile& file) {
  auto tokens = file.texts("tokenizer.ggml.tokens");
  if (!tokens) return std::move(tokens).error();
  if (!tokens->has_value() || (*tokens)->empty())
    return io_error("model file '{}' is incomplete: it has no vocabulary (key 'tokenizer.ggml.tokens')", file.path());
  std::unordered_set<std::string> seen;
  for (std::size_t i = 0; i < (*tokens)->size(); ++i) {
    const std::string_view token = (**tokens)[i];
    if (!seen.insert(token.empty() ? fmt::format("[EMPTY_{}]", i) : std::string(token)).second)
      return io_error("model file '{}' is damaged: token {} appears twice in its vocabulary", file.path(), i);
  }
  return {};
}

class LlamaVocabulary final : public Vocabulary {
 public:
  LlamaVocabulary(llama_model_ptr model, Result<std::unique_ptr<ChatTemplate>> chat_template)
      : model_(std::move(model)),
        vocabulary_(llama_model_get_vocab(model_.get())),
        template_(std::move(chat_template)) {}

  int size() const override { return llama_vocab_n_tokens(vocabulary_); }
  Result<std::vector<std::int32_t>> tokenize(std::string_view text, bool add_special,
                                             bool parse_special) const override;
  std::string piece(std::int32_t token, bool special) const override;
  bool ends_generation(std::int32_t token) const override {
    return is_token(token) && llama_vocab_is_eog(vocabulary_, token);
  }
  Result<std::string> apply_template(std::span<const ChatMessage> messages, bool add_assistant) const override {
    if (!template_) return template_.error();
    return (*template_)->apply(messages, add_assistant);
  }

 private:
  bool is_token(std::int32_t token) const { return token >= 0 && token < size(); }

  llama_model_ptr model_;
  const llama_vocab* vocabulary_;
  Result<std::unique_ptr<ChatTemplate>> template_;  // the error of a base model is told when a chat is asked for
};

Result<std::vector<std::int32_t>> LlamaVocabulary::tokenize(std::string_view text, bool add_special,
                                                            bool parse_special) const {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max() / 2))
    return invalid("text of {} bytes is too long to tokenize", text.size());
  if (const auto offset = first_invalid_utf8(text))
    return invalid("text is not valid UTF-8 at byte {} (0x{:02x})", *offset, static_cast<unsigned char>(text[*offset]));
  std::vector<std::int32_t> tokens(text.size() + 2);
  try {
    const auto run = [&] {
      return llama_tokenize(vocabulary_, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                            static_cast<std::int32_t>(tokens.size()), add_special, parse_special);
    };
    std::int32_t count = run();
    if (count < 0) {
      tokens.resize(static_cast<std::size_t>(-static_cast<std::int64_t>(count)));
      count = run();
    }
    if (count < 0) return error_of(Error::Kind::internal, "llama.cpp could not tokenize {} bytes", text.size());
    tokens.resize(static_cast<std::size_t>(count));
  } catch (const std::exception& error) {
    return error_of(Error::Kind::internal, "llama.cpp could not tokenize the text: {}", error.what());
  }
  if (!add_special) return tokens;
  // A prompt goes on: an end token that the file asks for has no place in it.
  if (llama_vocab_get_add_eos(vocabulary_) && !tokens.empty() && tokens.back() == llama_vocab_eos(vocabulary_))
    tokens.pop_back();
  const llama_token start = llama_vocab_bos(vocabulary_);
  if (llama_vocab_get_add_bos(vocabulary_) && tokens.size() >= 2 && tokens[0] == start && tokens[1] == start)
    tokens.erase(tokens.begin());
  return tokens;
}

std::string LlamaVocabulary::piece(std::int32_t token, bool special) const {
  if (!is_token(token)) return {};
  std::string text(32, '\0');
  try {
    const auto run = [&] {
      return llama_token_to_piece(vocabulary_, token, text.data(), static_cast<std::int32_t>(text.size()),
                                  /*lstrip=*/0, special);
    };
    std::int32_t count = run();
    if (count < 0) {
      text.resize(static_cast<std::size_t>(-count));
      count = run();
    }
    text.resize(static_cast<std::size_t>(std::max(count, 0)));
  } catch (const std::exception&) {
    return llama_vocab_get_text(vocabulary_, token);  // a damaged vocabulary: show it as it stands
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Vocabulary>> Vocabulary::load(const std::string& path, const std::string& chat_template) {
  route_llama_log();
  {
    auto file = GgufFile::open(path);
    if (!file) return std::move(file).error();
    if (auto checked = check_tokens(**file); !checked) return std::move(checked).error();
  }
  static_cast<void>(take_log_errors());
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  llama_model_ptr model;
  try {
    model.reset(llama_model_load_from_file(path.c_str(), params));
  } catch (const std::exception& error) {
    return io_error("cannot read the vocabulary of model file '{}': {}", path, error.what());
  }
  if (!model) return io_error("cannot read the vocabulary of model file '{}': {}", path, take_log_errors());
  if (llama_vocab_type(llama_model_get_vocab(model.get())) == LLAMA_VOCAB_TYPE_NONE)
    return unsupported("model '{}' has no tokenizer", path);
  auto chat = ChatTemplate::create(model.get(), chat_template);
  if (!chat && !chat_template.empty()) return std::move(chat).error();
  return std::unique_ptr<Vocabulary>(std::make_unique<LlamaVocabulary>(std::move(model), std::move(chat)));
}

}  // namespace qevict
