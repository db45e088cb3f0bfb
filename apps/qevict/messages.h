// Exit codes and the one way an error reaches the user: "qevict: error: ..." on stderr, always one line.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "qevict/result.h"

namespace qevict::app {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;        // files, models, a prompt that is too long, a closed pipe
inline constexpr int kExitUsage = 2;          // an option, a variable or the prompt itself is not valid
inline constexpr int kExitBug = 70;           // a fault of ours
inline constexpr int kExitInterrupted = 130;  // Ctrl-C

template <class... Args>
Error invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Error{Error::Kind::invalid, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error io_error(fmt::format_string<Args...> format, Args&&... args) {
  return Error{Error::Kind::io, fmt::format(format, std::forward<Args>(args)...)};
}

// Prints the line; newlines and other control characters in it become spaces.
void print_error(std::string_view message);
// The same, and the exit code that goes with the error's kind.
int fail(const Error& error);
// After Ctrl-C in work whose parts mean nothing alone.
int fail_interrupted();
// A line, or several, on stderr that are no error.
void print_note(std::string_view message);

}  // namespace qevict::app
