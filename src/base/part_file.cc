#include "base/part_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/check.h"

namespace qevict {

Result<std::string> new_part_file(const std::string& path) {
  std::error_code problem;
  if (std::filesystem::exists(path, problem)) return io_error("{} exists: give another name or remove it", path);
  constexpr int kMostNames = 100;
  for (int i = 0; i < kMostNames; ++i) {
    const std::string part = path + (i == 0 ? ".part" : ".part" + std::to_string(i));
    const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) {
      ::close(file);
      return part;
    }
    if (errno != EEXIST) break;
  }
  return io_error("cannot write {}: {}", path, std::strerror(errno));
}

Result<void> finish_part_file(const std::string& part, const std::string& path) {
  std::error_code problem;
  Result<void> done;
  if (std::filesystem::exists(path, problem)) {
    done = io_error("{} exists: give another name or remove it", path);
  } else {
    std::filesystem::rename(part, path, problem);
    if (problem) done = io_error("cannot rename {} to {}: {}", part, path, problem.message());
  }
  if (!done) std::filesystem::remove(part, problem);
  return done;
}

}  // namespace qevict
