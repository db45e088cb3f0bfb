// Where text stops being UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace qevict {

// Offset of the first byte that is not part of a valid character; nullopt if all is valid.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

}  // namespace qevict
