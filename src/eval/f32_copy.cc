#include "eval/f32_copy.h"

#include "base/part_file.h"
#include "model/f32_copy.h"

namespace qevict {

Result<void> make_f32_copy(const std::string& from, const std::string& to) {
  const Result<std::string> part = new_part_file(to);
  if (!part) return part.error();
  return finish_part_file(*part, to, write_f32_copy(from, *part));
}

}  // namespace qevict
