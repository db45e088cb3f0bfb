#include "cache/byte_meter.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"

namespace qevict {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

void poison([[maybe_unused]] std::span<std::byte> bytes) {
#ifndef NDEBUG
  if (!bytes.empty()) std::memset(bytes.data(), 0xff, bytes.size());
#endif
}

std::size_t& ByteMeter::of(ByteKind kind) {
  switch (kind) {
    case ByteKind::f16:
      return bytes_.f16;
    case ByteKind::full:
      return bytes_.full;
    case ByteKind::quantized:
      return bytes_.quantized;
    case ByteKind::ledger:
      return bytes_.ledger;
    case ByteKind::metadata:
      break;
  }
  return bytes_.metadata;
}

Buffer::Buffer(ByteMeter& meter, ByteKind kind, std::size_t bytes) : meter_(&meter), kind_(kind), size_(bytes) {
  if (bytes == 0) return;
  data_ = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  poison({data_, bytes});
  meter.add(kind, bytes);
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  meter_ = other.meter_;
  kind_ = other.kind_;
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

Buffer::~Buffer() { release(); }

void Buffer::release() {
  if (data_ == nullptr) return;
  meter_->remove(kind_, size_);
  ::operator delete(data_, kAlignment);
  data_ = nullptr;
  size_ = 0;
}

void Buffer::resize(std::size_t bytes) {
  QEVICT_CHECK(meter_ != nullptr, "only a metered buffer grows");
  if (bytes == size_) return;
  Buffer next(*meter_, kind_, bytes);
  if (size_ > 0 && bytes > 0) std::memcpy(next.data_, data_, std::min(size_, bytes));
  *this = std::move(next);
}

}  // namespace qevict
