#include "base/check.h"

namespace qevict {

void throw_bug(const char* condition, const char* why, const char* file, int line) {
  throw BugError(fmt::format("{}:{}: {} does not hold: {}", file, line, condition, why));
}

}  // namespace qevict
