#include "model/chat_template.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "llama.h"
#ifdef QEVICT_HAVE_LLAMA_COMMON
#include "chat.h"
#include "log.h"
#endif

namespace qevict {
namespace {

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  constexpr std::size_t kLongest = 300;
  if (text.size() > kLongest) text.resize(kLongest);
  return text;
}

std::vector<const char*> builtin_names() {
  std::vector<const char*> names(static_cast<std::size_t>(llama_chat_builtin_templates(nullptr, 0)));
  llama_chat_builtin_templates(names.data(), names.size());
  return names;
}

bool is_builtin(std::string_view choice) {
  const std::vector<const char*> names = builtin_names();
  return std::find(names.begin(), names.end(), choice) != names.end();
}

bool is_jinja(std::string_view choice) {
  return choice.find("{{") != std::string_view::npos || choice.find("{%") != std::string_view::npos;
}

// A template llama.h knows, by its name or by recognising its source.
class BuiltinTemplate final : public ChatTemplate {
 public:
  explicit BuiltinTemplate(std::string source) : source_(std::move(source)) {}

  Result<std::string> apply(std::span<const ChatMessage> messages, bool add_assistant) const override {
    std::vector<llama_chat_message> chat;
    std::size_t room = 256;
    for (const ChatMessage& message : messages) {
      if (message.role.find('\0') != std::string::npos || message.content.find('\0') != std::string::npos)
        return invalid("a chat message must not hold a zero byte");
      chat.push_back({message.role.c_str(), message.content.c_str()});
      room += 2 * (message.role.size() + message.content.size());
    }
    std::string text(room, '\0');
    std::int32_t used = render(chat, add_assistant, text);
    if (used > static_cast<std::int32_t>(text.size())) {
      text.resize(static_cast<std::size_t>(used));
      used = render(chat, add_assistant, text);
    }
    if (used < 0)
      return unsupported("llama.h does not recognise the chat template '{}'; name one with --chat-template: {}",
                         one_line(source_), fmt::join(builtin_names(), ", "));
    text.resize(static_cast<std::size_t>(used));
    return text;
  }

 private:
  std::int32_t render(const std::vector<llama_chat_message>& chat, bool add_assistant, std::string& text) const {
    return llama_chat_apply_template(source_.c_str(), chat.data(), chat.size(), add_assistant, text.data(),
                                     static_cast<std::int32_t>(text.size()));
  }

  std::string source_;
};

#ifdef QEVICT_HAVE_LLAMA_COMMON

class JinjaTemplate final : public ChatTemplate {
 public:
  explicit JinjaTemplate(common_chat_templates_ptr templates) : templates_(std::move(templates)) {}

  Result<std::string> apply(std::span<const ChatMessage> messages, bool add_assistant) const override {
    try {
      common_chat_templates_inputs inputs;
      for (const ChatMessage& message : messages) {
        common_chat_msg& copy = inputs.messages.emplace_back();
        copy.role = message.role;
        copy.content = message.content;
      }
      inputs.add_generation_prompt = add_assistant;
      inputs.force_pure_content = true;  // the template alone, without the parsers for tool calls
      return common_chat_templates_apply(templates_.get(), inputs).prompt;
    } catch (const std::exception& error) {
      return invalid("the chat template cannot write this conversation: {}", one_line(error.what()));
    }
  }

 private:
  common_chat_templates_ptr templates_;
};

Result<std::unique_ptr<ChatTemplate>> from_source(const llama_model* model, const std::string& source) {
  static std::once_flag quiet;
  std::call_once(quiet, [] { common_log_set_verbosity_thold(-1); });
  try {
    return std::unique_ptr<ChatTemplate>(std::make_unique<JinjaTemplate>(common_chat_templates_init(model, source)));
  } catch (const std::exception&) {  // llama.cpp slices its own; what() says nothing
    return invalid("the chat template is not valid Jinja: '{}'; name a known one with --chat-template: {}",
                   one_line(source), fmt::join(builtin_names(), ", "));
  }
}

#else

Result<std::unique_ptr<ChatTemplate>> from_source(const llama_model*, const std::string& source) {
  auto chat_template = std::make_unique<BuiltinTemplate>(source);
  const ChatMessage probe[] = {{"user", "hello"}};
  if (auto text = chat_template->apply(probe, true); !text) return std::move(text).error();
  return std::unique_ptr<ChatTemplate>(std::move(chat_template));
}

#endif

}  // namespace

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::create(const llama_model* model, const std::string& choice) {
  if (is_builtin(choice)) return std::unique_ptr<ChatTemplate>(std::make_unique<BuiltinTemplate>(choice));
  if (!choice.empty() && !is_jinja(choice))
    return invalid("unknown chat template '{}'; known: {}, or Jinja source", one_line(choice),
                   fmt::join(builtin_names(), ", "));
  if (!choice.empty()) return from_source(model, choice);
  const char* own = llama_model_chat_template(model, /*name=*/nullptr);
  if (own == nullptr)
    return unsupported("the model file has no chat template; name one with --chat-template: {}",
                       fmt::join(builtin_names(), ", "));
  return from_source(model, own);
}

}  // namespace qevict
