#include "eval/f32_copy.h"

#include <filesystem>

#include "base/part_file.h"
#include "model/f32_copy.h"

namespace qevict {

Result<void> make_f32_copy(const std::string& from, const std::string& to) {
  const Result<std::string> part = new_part_file(to);
  if (!part) return part.error();
  if (Result<void> written = write_f32_copy(from, *part); !written) {
    std::error_code ignored;
    std::filesystem::remove(*part, ignored);
    return written;
  }
  return finish_part_file(*part, to);
}

}  // namespace qevict
