// A Conversation knows which tokens a further message adds to a cache that already holds the turns before it.
//
// An answer's own tokens are in the cache as they were sampled, all but the last. So only what the template writes
// after the answer (its end-of-turn marker, the new message, the assistant's turn marker) is tokenized and fed; the
// past is never rendered or tokenized again.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qevict/generate.h"
#include "qevict/model.h"

namespace qevict::app {

class Conversation {
 public:
  // The parts of a Model used here.
  struct Text {
    std::function<Result<std::string>(std::span<const ChatMessage>, bool add_assistant)> render;
    std::function<Result<std::vector<Token>>(std::string_view text, bool add_special)> tokenize;
    std::function<bool(Token)> ends_generation;
    static Text of(const Model& model);
  };

  Conversation(Text text, const std::optional<std::string>& system);

  // Tokens to feed for one more user message. Changes nothing: answered() takes the turn into the conversation.
  Result<std::vector<Token>> tokens_for(const std::string& user) const;
  void answered(const std::string& user, const Generation& answer);
  // The cache was reset (a prompt was interrupted halfway): the next message feeds everything again.
  void cache_lost();
  // Starts anew, with the system message only.
  void clear();

  const std::vector<ChatMessage>& messages() const { return messages_; }

 private:
  Text text_;
  std::vector<ChatMessage> messages_;
  std::size_t kept_by_clear_ = 0;    // 1 with a system message
  bool cached_ = false;              // the cache holds messages_
  std::optional<Token> last_unfed_;  // the answer's last token, where it is text
};

}  // namespace qevict::app
