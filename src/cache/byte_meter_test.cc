#include "cache/byte_meter.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace qevict {
namespace {

TEST(ByteMeter, CountsEveryKindApart) {
  ByteMeter meter;
  {
    const Buffer f16(meter, ByteKind::f16, 1);
    const Buffer full(meter, ByteKind::full, 20);
    const Buffer quantized(meter, ByteKind::quantized, 300);
    const Buffer ledger(meter, ByteKind::ledger, 4000);
    const Buffer metadata(meter, ByteKind::metadata, 50000);
    EXPECT_EQ(meter.bytes().f16, 1u);
    EXPECT_EQ(meter.bytes().full, 20u);
    EXPECT_EQ(meter.bytes().quantized, 300u);
    EXPECT_EQ(meter.bytes().ledger, 4000u);
    EXPECT_EQ(meter.bytes().metadata, 50000u);
    EXPECT_EQ(meter.bytes().total(), 54321u);
  }
  EXPECT_EQ(meter.bytes().total(), 0u);
}

TEST(ByteMeter, MovingABufferMovesItsBytes) {
  ByteMeter meter;
  Buffer a(meter, ByteKind::f16, 100);
  Buffer b(meter, ByteKind::quantized, 10);
  b = std::move(a);
  EXPECT_EQ(meter.bytes().f16, 100u);
  EXPECT_EQ(meter.bytes().quantized, 0u);
  EXPECT_EQ(b.size(), 100u);
  EXPECT_EQ(a.size(), 0u);  // NOLINT(bugprone-use-after-move)
  const Buffer c(std::move(b));
  EXPECT_EQ(meter.bytes().total(), 100u);
}

TEST(ByteMeter, BuffersAreAlignedAndKeepWhatFits) {
  ByteMeter meter;
  Buffer buffer(meter, ByteKind::full, 3);
  std::memcpy(buffer.data(), "abc", 3);
  buffer.resize(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
  EXPECT_EQ(std::memcmp(buffer.data(), "abc", 3), 0);
  EXPECT_EQ(meter.bytes().full, 1000u);
  buffer.resize(2);
  EXPECT_EQ(std::memcmp(buffer.data(), "ab", 2), 0);
  EXPECT_EQ(meter.bytes().full, 2u);
  buffer.resize(0);
  EXPECT_EQ(meter.bytes().full, 0u);
  buffer.resize(8);
  EXPECT_EQ(meter.bytes().full, 8u);
  EXPECT_THROW(Buffer{}.resize(8), BugError);
}

#ifndef NDEBUG
TEST(ByteMeter, NewStorageIsPoisoned) {
  ByteMeter meter;
  Buffer buffer(meter, ByteKind::full, 4);
  buffer.as<std::uint32_t>()[0] = 7;
  buffer.resize(12);
  EXPECT_EQ(buffer.as<std::uint32_t>()[0], 7u);
  for (int i = 1; i < 3; ++i) EXPECT_EQ(buffer.as<std::uint32_t>()[i], UINT32_MAX);  // NaN as f16 and as f32
}
#endif

}  // namespace
}  // namespace qevict
