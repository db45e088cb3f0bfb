// ggml's and llama.cpp's log, kept off the terminal: the library never prints. The last error lines of this thread stay
// readable, because ggml reports through them what its return values leave out.
#pragma once

#include <string>

namespace qevict {

// The error lines ggml or llama.cpp logged on this thread since the last call, joined by "; ", without their
// "function: " prefixes. Empties the record.
std::string take_log_errors();

}  // namespace qevict
