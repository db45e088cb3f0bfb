#include "messages.h"

#include <cstdio>

namespace qevict::app {

void print_error(std::string_view message) {
  std::string line = "qevict: error: ";
  for (const char c : message) line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int fail(const Error& error) {
  print_error(error.message);
  switch (error.kind) {
    case Error::Kind::invalid:
      return kExitUsage;
    case Error::Kind::interrupted:
      return kExitInterrupted;
    case Error::Kind::internal:
    case Error::Kind::io:
    case Error::Kind::unsupported:
    case Error::Kind::too_long:
      break;
  }
  return kExitFailure;
}

int fail_interrupted() {
  return fail({Error::Kind::interrupted, "interrupted: nothing is reported of unfinished work"});
}

void print_note(std::string_view message) {
  std::string line(message);
  if (!line.ends_with('\n')) line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace qevict::app
