// What the machine can still give.
#pragma once

#include <cstddef>
#include <optional>

namespace qevict {

// Bytes of memory that can be used without swapping; nullopt where the system does not say.
std::optional<std::size_t> available_memory_bytes();

}  // namespace qevict
