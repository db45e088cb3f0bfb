// QEVICT_CHECK states what must hold in our own code; it is on in release builds and throws BugError.
// Errors of the world (files, options, requests) are Error values, made here from a format string.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "qevict/result.h"

namespace qevict {

[[noreturn]] void throw_bug(const char* condition, const char* why, const char* file, int line);

#define QEVICT_CHECK(condition, why) \
  ((condition) ? static_cast<void>(0) : ::qevict::throw_bug(#condition, why, __FILE__, __LINE__))

template <class... Args>
Error error_of(Error::Kind kind, fmt::format_string<Args...> format, Args&&... args) {
  return Error{kind, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error invalid(fmt::format_string<Args...> format, Args&&... args) {
  return error_of(Error::Kind::invalid, format, std::forward<Args>(args)...);
}
template <class... Args>
Error io_error(fmt::format_string<Args...> format, Args&&... args) {
  return error_of(Error::Kind::io, format, std::forward<Args>(args)...);
}
template <class... Args>
Error unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return error_of(Error::Kind::unsupported, format, std::forward<Args>(args)...);
}

}  // namespace qevict
