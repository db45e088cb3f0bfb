// Result<T>: a value, or an Error that says what was wrong and how to put it right.
//
// Every fallible call of the library returns one; the library never prints, exits or aborts.
#pragma once

#include <exception>
#include <string>
#include <utility>
#include <variant>

namespace qevict {

struct Error {
  enum class Kind {
    invalid,      // a value the caller gave: option, prompt, budget
    io,           // a file that is missing, unreadable, cut or damaged
    unsupported,  // well-formed, but not something this build or version handles
    too_long,     // more tokens than the context holds
    interrupted,  // stopped by the caller's own callback
    internal,     // a fault of ours, or non-finite numbers from the model
  };
  Kind kind = Kind::internal;
  std::string message;  // one line: the value and the remedy
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  // REQUIRES: ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  // REQUIRES: !ok().
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  // REQUIRES: !ok().
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  Error error_;
  bool ok_ = true;
};

// A broken promise of our own code (QEVICT_CHECK). Thrown, never caught inside the library, so a server can answer
// 500 and live.
class BugError : public std::exception {
 public:
  explicit BugError(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace qevict
