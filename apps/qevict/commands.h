// The commands. Each adds its options to the CLI11 subcommand and returns what runs it; the result is the exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "options.h"

namespace qevict::app {

using Command = std::function<int()>;

Command add_generate(CLI::App& command, Options& options);
Command add_chat(CLI::App& command, Options& options);
Command add_info(CLI::App& command, Options& options);
Command add_methods(CLI::App& command, Options& options);
Command add_bench(CLI::App& command, Options& options);
Command add_eval(CLI::App& command, Options& options);

}  // namespace qevict::app
