// qevict chat: a conversation through the model's template. The compressed cache lives on from turn to turn.
#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "commands.h"
#include "conversation.h"
#include "loaded.h"
#include "messages.h"
#include "progress.h"
#include "summary.h"
#include "terminal.h"

namespace qevict::app {
namespace {

constexpr const char* kHelp =
    "/clear  forget the conversation and start anew\n"
    "/stats  what the cache holds\n"
    "/exit   leave (Ctrl-D and Ctrl-C too; Ctrl-C during an answer only stops it)\n"
    "/help   this\n"
    "Everything else is a message, one line each.";

class Chat {
 public:
  Chat(const Options& options, const GenerateOptions& generate_as, Loaded& loaded)
      : options_(options),
        generate_as_(generate_as),
        loaded_(loaded),
        conversation_(Conversation::Text::of(loaded.model()), options.system),
        interactive_(LineReader::is_terminal()) {}

  int run(std::optional<std::string> first_message) {
    if (interactive_) print_note("One line is one message; /help lists the commands.");
    int code = first_message ? message(*first_message) : kContinue;
    while (code == kContinue) code = next_line();
    if (broken_) return code;
    report();
    if (const Result<void> written = output_.status(); !written) return fail(written.error());
    // A script must see that a message was refused; a person has read it.
    return code == kExitOk && refused_ && !interactive_ ? kExitFailure : code;
  }

 private:
  static constexpr int kContinue = -1;

  int next_line() {
    if (interactive_) std::fputs("> ", stderr);
    const Result<std::optional<std::string>> line = input_.next();
    if (!line) return failed(line.error());
    if (interrupted() || !*line) {
      if (interactive_) print_note("");
      return interrupted() ? kExitInterrupted : kExitOk;
    }
    return (*line)->starts_with('/') ? command(**line) : message(**line);
  }

  int command(const std::string& line) {
    const std::string name = line.substr(0, line.find_last_not_of(" \t") + 1);
    if (name == "/exit") return kExitOk;
    if (name == "/clear") {
      conversation_.clear();
      loaded_.session().reset();
    } else if (name == "/stats") {
      print_note(summary_text(loaded_.model().info(), loaded_.session(), stats_, loaded_.settings()));
    } else if (name == "/help") {
      print_note(kHelp);
    } else if (name.find_first_not_of("/abcdefghijklmnopqrstuvwxyz") == std::string::npos) {
      print_error(fmt::format("no such command: {} (/help lists them)", name));
      refused_ = true;
    } else {
      return message(line);
    }
    return kContinue;
  }

  int message(const std::string& text) {
    if (text.find_first_not_of(" \t") == std::string::npos) return kContinue;
    const auto start = std::chrono::steady_clock::now();
    const Result<std::vector<Token>> tokens = conversation_.tokens_for(text);
    if (!tokens) return refuse(tokens.error());
    const double text_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

    ProgressBar bar("reading");
    const Result<Generation> answer =
        generate(loaded_.model(), loaded_.session(), *tokens, generate_as_, callbacks(bar));
    bar.finish();
    if (!answer) return answer.error().kind == Error::Kind::too_long ? refuse(answer.error()) : failed(answer.error());
    if (!options_.json && !output_.failed()) output_.write("\n");
    stats_.add(*answer, text_ms, loaded_.session());
    if (answer->stop == StopReason::interrupted && answer->tokens.empty()) {
      conversation_.cache_lost();  // the prompt was left halfway: the next message reads the conversation again
      loaded_.session().reset();
    } else {
      conversation_.answered(text, *answer);
    }
    if (answer->stop == StopReason::context_full) {
      print_note(fmt::format("qevict: the context of {} tokens is full; /clear starts a new conversation",
                             loaded_.session().n_ctx()));
    }
    if (output_.failed()) return kExitFailure;
    if (answer->stop != StopReason::interrupted) return kContinue;
    if (!interactive_) return kExitInterrupted;
    clear_interrupt();
    return kContinue;
  }

  GenerateCallbacks callbacks(ProgressBar& bar) {
    GenerateCallbacks callbacks;
    callbacks.progress = [&bar](std::int64_t done, std::int64_t total) {
      bar.update(done, total);
      return !interrupted();
    };
    callbacks.stop = [] { return interrupted(); };
    callbacks.text = [this, &bar](std::string_view piece) {
      bar.finish();
      return options_.json || output_.write(piece);
    };
    return callbacks;
  }

  // A message that cannot be taken leaves the conversation as it was.
  int refuse(const Error& error) {
    refused_ = true;
    print_error(error.kind == Error::Kind::too_long ? error.message + "; /clear starts a new conversation"
                                                    : error.message);
    return kContinue;
  }

  int failed(const Error& error) {
    broken_ = true;
    return fail(error);
  }

  void report() {
    const ModelInfo& model = loaded_.model().info();
    if (options_.json) {
      Json json = {{"messages", Json::array()}, {"turns", stats_.turns}};
      for (const ChatMessage& message : conversation_.messages())
        json["messages"].push_back({{"role", message.role}, {"content", message.content}});
      json.update(summary_json(model, loaded_.session(), stats_, loaded_.settings(), loaded_.rss_peak_bytes()));
      output_.write(to_text(json, 2) + "\n");
    } else if (stats_.turns > 0) {
      print_note("\n" + summary_text(model, loaded_.session(), stats_, loaded_.settings()));
    }
  }

  const Options& options_;
  const GenerateOptions& generate_as_;
  Loaded& loaded_;
  Conversation conversation_;
  RunStats stats_;
  LineReader input_;
  Output output_;
  bool interactive_;
  bool refused_ = false;  // some message or command was not taken
  bool broken_ = false;   // ended by an error that was printed
};

int run(Options& options) {
  const Result<const Method*> method = require_method(options.cache.method);
  if (!method) return fail(method.error());
  if (const Result<void> checked = check_cache_options(options, **method); !checked) return fail(checked.error());
  if (options.file == "-") return fail(invalid("-f - contradicts chat, which reads its messages from standard input"));
  std::optional<std::string> first_message = options.prompt;
  if (options.file) {
    Result<std::string> text = read_whole(*options.file);
    if (!text) return fail(text.error());
    first_message = *std::move(text);
  }
  // A conversation's length is not known, so a percentage refers to what has been said so far.
  if (options.cache.budget.ratio && !options.cache.budget_base) options.cache.budget_base = BudgetBase::current;
  if (const Result<void> completed = complete(options); !completed) return fail(completed.error());
  const GenerateOptions generate_as = generate_options(options, -1);
  const Result<std::unique_ptr<Loaded>> opened = Loaded::open(options, generate_as);
  if (!opened) return fail(opened.error());
  return Chat(options, generate_as, **opened).run(first_message);
}

}  // namespace

Command add_chat(CLI::App& command, Options& options) {
  add_chat_options(command, options);
  add_prompt_options(command, options);
  add_model_options(command, options);
  add_sampling_options(command, options);
  add_cache_options(command, options);
  add_json_option(command, options);
  add_print_settings_option(command, options);
  return [&options] { return run(options); };
}

}  // namespace qevict::app
