// The QEVICT_ environment variables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "qevict/result.h"

namespace qevict::app {

// "--kv-budget" -> "QEVICT_KV_BUDGET".
std::string variable_name(std::string_view long_flag);

// An error if the environment holds a QEVICT_ variable that is none of `known` and not one of the build's or the
// tests'.
Result<void> check_environment(const std::vector<std::string>& known);

// The nearest of `names` to `name` by edit distance; "" if none is near. For "did you mean".
std::string nearest(std::string_view name, const std::vector<std::string>& names);

}  // namespace qevict::app
