// Every byte of the cache comes from a Buffer, and every Buffer is on a ByteMeter: so what is reported is what is
// allocated.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "qevict/session.h"  // CacheBytes

namespace qevict {

enum class ByteKind { f16, full, quantized, ledger, metadata };

// Counts for any number of threads at once; bytes() is exact while none of them allocates.
class ByteMeter {
 public:
  void add(ByteKind kind, std::size_t bytes) { std::atomic_ref(of(kind)).fetch_add(bytes, std::memory_order_relaxed); }
  void remove(ByteKind kind, std::size_t bytes) {
    std::atomic_ref(of(kind)).fetch_sub(bytes, std::memory_order_relaxed);
  }
  const CacheBytes& bytes() const { return bytes_; }

 private:
  std::size_t& of(ByteKind kind);
  CacheBytes bytes_;
};

// Debug builds fill storage that holds nothing with quiet NaNs (of f16 and f32), so that a value read before it is
// written cannot pass unseen (robustness G08). A no-op in release builds.
void poison(std::span<std::byte> bytes);

// Owned, 64-byte aligned, poisoned or uninitialised.
class Buffer {
 public:
  Buffer() = default;
  Buffer(ByteMeter& meter, ByteKind kind, std::size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::size_t size() const { return size_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }
  // Keeps the first min(size, bytes) bytes.
  void resize(std::size_t bytes);

 private:
  void release();
  ByteMeter* meter_ = nullptr;
  ByteKind kind_ = ByteKind::f16;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace qevict
