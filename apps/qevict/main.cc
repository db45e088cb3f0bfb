// qevict: large language models in a KV cache of the bytes you give it.
#include <fmt/format.h>

#include <cstdlib>
#include <new>

#include "commands.h"
#include "environment.h"
#include "messages.h"
#include "terminal.h"

namespace qevict::app {
namespace {

struct CommandRow {
  std::string_view name;
  std::string_view summary;
  Command (*add)(CLI::App&, Options&);
};

constexpr CommandRow kCommands[] = {
    {"generate", "continue a text", add_generate},
    {"chat", "talk to an instruction-tuned model", add_chat},
    {"info", "this build, this machine, and a model", add_info},
    {"methods", "the cache methods and rankings to choose from", add_methods},
    {"bench", "measure speed and memory, method beside method", add_bench},
    {"eval", "measure what a compressed cache changes", add_eval},
};

// CLI11's own help without the variable behind every option: one footer says how they are named.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_size() == 0 ? "" : " " + option->get_type_name();
  }
};

std::string overview() {
  std::string text =
      "qevict runs GGUF language models with a KV cache of the bytes you give it.\n\n"
      "  qevict generate -p \"Once upon a time\"\n"
      "  qevict generate -f book.txt -n 200 --kv-budget 20%\n"
      "  qevict chat\n\nCommands (qevict COMMAND --help):\n";
  for (const CommandRow& row : kCommands) text += fmt::format("  {:<10}{}\n", row.name, row.summary);
  return text;
}

std::vector<std::string> known_variables() {
  std::vector<std::string> names;
  for (const CommandRow& row : kCommands) {
    CLI::App scratch;
    Options ignored;
    row.add(scratch, ignored);
    for (const CLI::Option* option : scratch.get_options())
      if (!option->get_envname().empty()) names.push_back(option->get_envname());
  }
  return names;
}

int print(const std::string& text) {
  Output output;
  output.write(text);
  const Result<void> written = output.status();
  return written ? kExitOk : fail(written.error());
}

// CLI11's complaint in our words: the option, what is wrong, and what may have been meant.
Error usage_error(const CLI::App& command, const CLI::ParseError& error) {
  if (const std::vector<std::string> rest = command.remaining(); !rest.empty()) {
    std::vector<std::string> flags;
    for (const CLI::Option* option : command.get_options())
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    const std::string near = rest.front().starts_with("--") ? nearest(rest.front(), flags) : "";
    return invalid("unexpected argument '{}'{}", rest.front(),
                   near.empty() ? fmt::format(" ({} --help lists the options)", command.get_name())
                                : fmt::format("; did you mean {}?", near));
  }
  const std::string what = error.what();
  const std::string flag = what.substr(0, what.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && what.find("At Most") != std::string::npos) {
    return invalid("{} is given more than once", flag);
  }
  const bool from_variable =
      flag.starts_with("--") && !typed(command, flag) && std::getenv(variable_name(flag).c_str()) != nullptr;
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr && what.find("= ") != std::string::npos) {
    const std::string name = what.substr(what.find("--"), what.find(" =") - what.find("--"));
    return invalid("{} is '{}': it takes true or false", variable_name(name), what.substr(what.find("= ") + 2));
  }
  return invalid("{}{}", what, from_variable ? fmt::format(" (set by {})", variable_name(flag)) : "");
}

int run_command(const CommandRow& row, int argc, char** argv) {
  CLI::App command(std::string(row.summary), fmt::format("qevict {}", row.name));
  command.formatter(std::make_shared<HelpFormatter>());
  command.footer("Every long option is also an environment variable: QEVICT_KV_BUDGET=20% for --kv-budget 20%.");
  Options options;
  const Command run = row.add(command, options);
  try {
    command.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return print(command.help());
  } catch (const CLI::ParseError& error) {
    return fail(usage_error(command, error));
  }
  if (const Result<void> settled = settle(command, options); !settled) return fail(settled.error());
  if (const Result<void> known = check_environment(known_variables()); !known) return fail(known.error());
  return run();
}

int dispatch(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") return print(overview());
  if (name == "--version") return print(fmt::format("qevict {}\n", version()));
  std::vector<std::string> names;
  for (const CommandRow& row : kCommands) {
    if (row.name == name) return run_command(row, argc - 1, argv + 1);
    names.emplace_back(row.name);
  }
  if (name.empty()) return fail(invalid("no command; use one of {} (qevict --help)", fmt::join(names, ", ")));
  const std::string near = nearest(name, names);
  return fail(invalid("unknown command '{}'{}; known: {}", name,
                      near.empty() ? "" : fmt::format(", did you mean {}?", near), fmt::join(names, ", ")));
}

}  // namespace
}  // namespace qevict::app

int main(int argc, char** argv) {
  using namespace qevict::app;
  prepare_process();
  try {
    return dispatch(argc, argv);
  } catch (const qevict::BugError& error) {
    print_error(fmt::format("a fault in qevict itself: {}", error.what()));
    return kExitBug;
  } catch (const std::bad_alloc&) {
    print_error("out of memory: a smaller --ctx-size, --kv-budget or model needs less");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return kExitFailure;
}
