#include "eval/f32_copy.h"

#include <filesystem>

#include "base/check.h"
#include "model/f32_copy.h"

namespace qevict {

Result<void> make_f32_copy(const std::string& from, const std::string& to) {
  std::error_code problem;
  if (std::filesystem::exists(to, problem)) return io_error("{} exists: give another name or remove it", to);
  const std::string part = to + ".part";
  Result<void> written = write_f32_copy(from, part);
  if (written) {
    std::filesystem::rename(part, to, problem);
    if (problem) written = io_error("cannot rename {} to {}: {}", part, to, problem.message());
  }
  if (!written) std::filesystem::remove(part, problem);
  return written;
}

}  // namespace qevict
