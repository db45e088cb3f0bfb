#include "support/scratch.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace qevict::testing {

std::string scratch_path(const std::string& name) {
  const char* given = std::getenv("QEVICT_TEST_SCRATCH");
  const std::filesystem::path folder =
      (given != nullptr ? std::filesystem::path(given) : std::filesystem::temp_directory_path() / "qevict-test") /
      std::to_string(::getpid());  // test programs run side by side
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

std::string test_model() {
  const char* given = std::getenv("QEVICT_TEST_MODEL");
  return given != nullptr ? given : "";
}

}  // namespace qevict::testing
