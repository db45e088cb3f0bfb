#include "cache/window_index.h"

#include "base/check.h"

namespace qevict {

WindowIndex::WindowIndex(ByteMeter& meter, int capacity, std::size_t entry_bytes)
    : entries_(meter, ByteKind::metadata, static_cast<std::size_t>(capacity) * entry_bytes),
      capacity_(capacity),
      slot_bits_(slot_bits_for(capacity)),
      wide_(entry_bytes == sizeof(std::uint64_t)) {}

void WindowIndex::store(int i, std::uint64_t value) {
  if (wide_) {
    entries_.as<std::uint64_t>()[i] = value;
  } else {
    QEVICT_CHECK(value <= UINT32_MAX, "a narrow index entry holds every window id of the context");
    entries_.as<std::uint32_t>()[i] = static_cast<std::uint32_t>(value);
  }
}

int WindowIndex::lower_bound(std::int64_t window) const {
  int low = 0;
  int high = size_;
  while (low < high) {
    const int middle = (low + high) / 2;
    if ((*this)[middle].window < window) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bool WindowIndex::contains(std::int64_t window) const {
  const int at = lower_bound(window);
  return at < size_ && (*this)[at].window == window;
}

void WindowIndex::insert(const Entry& entry) {
  QEVICT_CHECK(size_ < capacity_, "a tier never holds more windows than it has slots");
  const int at = lower_bound(entry.window);
  QEVICT_CHECK(at == size_ || (*this)[at].window != entry.window, "a window is in one tier only");
  for (int i = size_; i > at; --i) store(i, packed(i - 1));
  store(at, pack(entry));
  ++size_;
}

WindowIndex::Entry WindowIndex::erase(std::int64_t window) {
  const int at = lower_bound(window);
  QEVICT_CHECK(at < size_ && (*this)[at].window == window, "only windows that are there leave a tier");
  const Entry entry = (*this)[at];
  for (int i = at; i + 1 < size_; ++i) store(i, packed(i + 1));
  --size_;
  return entry;
}

std::vector<int> WindowIndex::free_slots() const {
  if (size_ == capacity_) return {};  // as after every routing of a long text
  std::vector<bool> used(static_cast<std::size_t>(capacity_));
  for (int i = 0; i < size_; ++i) used[static_cast<std::size_t>((*this)[i].slot)] = true;
  std::vector<int> result;
  for (int slot = capacity_ - 1; slot >= 0; --slot) {
    if (!used[static_cast<std::size_t>(slot)]) result.push_back(slot);
  }
  return result;
}

}  // namespace qevict
