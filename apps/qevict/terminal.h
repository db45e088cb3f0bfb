// Standard input and output, and Ctrl-C.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "qevict/result.h"

namespace qevict::app {

// First thing in main: makes sure descriptors 0 to 2 are open (a file must never land on one that was closed), turns a
// broken pipe into a write error, and takes over Ctrl-C.
void prepare_process();

// Ctrl-C. The first one is noted here and ends what is under way; a second before that ends the process.
bool interrupted();
void clear_interrupt();

// Standard output, unbuffered. After the first failed write everything is dropped and error() tells why.
class Output {
 public:
  bool write(std::string_view text);  // false once a write has failed
  bool failed() const { return error_number_ != 0; }
  Result<void> status() const;
  bool is_terminal() const;
  bool at_line_start() const { return last_ == '\n'; }

 private:
  int error_number_ = 0;
  char last_ = '\n';
};

// Standard input by lines.
class LineReader {
 public:
  // The next line without its end; nothing at the end of input or on Ctrl-C (then interrupted() holds).
  Result<std::optional<std::string>> next();
  static bool is_terminal();

 private:
  std::string pending_;
  bool ended_ = false;
};

// The whole of a file, "-" being standard input.
Result<std::string> read_whole(const std::string& path);

}  // namespace qevict::app
