#include "base/part_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"

namespace qevict {

namespace {

Result<void> check_free(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  return io_error("{} exists: give another name or remove it", path);
}

}  // namespace

Result<std::string> new_part_file(const std::string& path) {
  if (const Result<void> checked = check_free(path); !checked) return checked.error();
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

Result<void> finish_part_file(const std::string& part, const std::string& path, Result<void> written) {
  std::error_code problem;
  Result<void> done = written ? check_free(path) : std::move(written);
  if (done) {
    std::filesystem::rename(part, path, problem);
    if (problem) done = io_error("cannot rename {} to {}: {}", part, path, problem.message());
  }
  if (!done) std::filesystem::remove(part, problem);
  return done;
}

}  // namespace qevict
