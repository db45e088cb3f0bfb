// Files a test may write.
#pragma once

#include <string>

namespace qevict::testing {

// A path under QEVICT_TEST_SCRATCH (or the system's temporary folder), in a folder that is made if it is missing.
std::string scratch_path(const std::string& name);

// The default model, from QEVICT_TEST_MODEL; empty if the variable is not set.
std::string test_model();

}  // namespace qevict::testing
