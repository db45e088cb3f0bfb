#include "memory.h"

#include <sys/mman.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace qevict::app {
namespace {

// A "VmHWM:   1234 kB" line of /proc/self/status.
std::size_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(key + ":")) continue;
    std::size_t kilobytes = 0;
    std::istringstream(line.substr(key.size() + 1)) >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

void touch_mappings_of(const std::string& path) {
#ifdef MADV_POPULATE_READ
  std::error_code ignored;
  const std::string canonical = std::filesystem::canonical(path, ignored).string();
  if (canonical.empty()) return;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!line.ends_with(" " + canonical)) continue;
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) continue;
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);
  }
#else
  static_cast<void>(path);
#endif
}

}  // namespace

std::size_t peak_resident_bytes() { return status_bytes("VmHWM"); }

void MemoryMark::start(const std::string& model_path) {
  touch_mappings_of(model_path);
  std::ofstream("/proc/self/clear_refs") << "5";
  at_start_ = status_bytes("VmRSS");
}

std::size_t MemoryMark::above_start() const {
  const std::size_t peak = peak_resident_bytes();
  return at_start_ > 0 && peak > at_start_ ? peak - at_start_ : 0;
}

}  // namespace qevict::app
