#include "qevict/version.h"

namespace qevict {

std::string_view version() { return QEVICT_VERSION; }

}  // namespace qevict
