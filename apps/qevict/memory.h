// This process's resident memory, as the kernel counts it (Linux; elsewhere everything is 0).
#pragma once

#include <cstddef>
#include <string>

namespace qevict::app {

std::size_t peak_resident_bytes();

// evaluation.md 6.3: what a run takes above the weights. start() touches every mapped page of the model file and resets
// the kernel's high-water mark; above_start() is the mark since then less what was resident at start.
class MemoryMark {
 public:
  void start(const std::string& model_path);
  std::size_t above_start() const;  // 0 if never started

 private:
  std::size_t at_start_ = 0;
};

}  // namespace qevict::app
