// Files that appear under their name only when they are whole.
#pragma once

#include <string>

#include "qevict/result.h"

namespace qevict {

// An empty file beside `path`, new under a name of its own, to be written and then finished or removed by the caller.
// Errors name `path`: it exists, or cannot be written there.
Result<std::string> new_part_file(const std::string& path);

// Renames `part` to `path`, which must not exist, if it was `written`. On failure, of this or of writing, `part` is
// removed.
Result<void> finish_part_file(const std::string& part, const std::string& path, Result<void> written = {});

}  // namespace qevict
