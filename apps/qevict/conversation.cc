#include "conversation.h"

#include <algorithm>

#include "messages.h"

namespace qevict::app {

Conversation::Text Conversation::Text::of(const Model& model) {
  return {[&model](std::span<const ChatMessage> messages, bool add_assistant) {
            return model.apply_template(messages, add_assistant);
          },
          [&model](std::string_view text, bool add_special) { return model.tokenize(text, add_special, true); },
          [&model](Token token) { return model.ends_generation(token); }};
}

Conversation::Conversation(Text text, const std::optional<std::string>& system) : text_(std::move(text)) {
  if (system) messages_.push_back({"system", *system});
  kept_by_clear_ = messages_.size();
}

Result<std::vector<Token>> Conversation::tokens_for(const std::string& user) const {
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"user", user});
  if (!cached_) {
    const Result<std::string> all = text_.render(messages, true);
    if (!all) return all.error();
    return text_.tokenize(*all, true);
  }
  // A stand-in for the answer shows where the template ends it, whatever the template does to the answer's text.
  std::string stand_in = "qevict-answer";
  while (std::ranges::any_of(messages,
                             [&](const ChatMessage& m) { return m.content.find(stand_in) != std::string::npos; }))
    stand_in += "-x";
  messages[messages.size() - 2].content = stand_in;
  const Result<std::string> all = text_.render(messages, true);
  if (!all) return all.error();
  const std::size_t at = all->rfind(stand_in);
  if (at == std::string::npos) {
    return Error{Error::Kind::unsupported,
                 "the chat template drops earlier answers; choose another with --chat-template"};
  }
  Result<std::vector<Token>> tokens = text_.tokenize(std::string_view(*all).substr(at + stand_in.size()), false);
  if (tokens && last_unfed_) tokens->insert(tokens->begin(), *last_unfed_);
  return tokens;
}

void Conversation::answered(const std::string& user, const Generation& answer) {
  messages_.push_back({"user", user});
  messages_.push_back({"assistant", answer.text});
  last_unfed_.reset();
  if (!answer.tokens.empty() && !text_.ends_generation(answer.tokens.back())) last_unfed_ = answer.tokens.back();
  cached_ = true;
}

void Conversation::cache_lost() {
  cached_ = false;
  last_unfed_.reset();
}

void Conversation::clear() {
  messages_.resize(kept_by_clear_);
  cache_lost();
}

}  // namespace qevict::app
