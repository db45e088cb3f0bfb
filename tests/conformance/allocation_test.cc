// Bytes reported are bytes allocated: this program counts every 64-byte aligned allocation that is alive, which while
// no call runs are the cache's buffers and nothing else.
#include <atomic>
#include <cstdlib>
#include <new>

#include "conformance/sessions.h"

namespace {

std::atomic<std::size_t> live_bytes{0};
std::atomic<std::size_t> peak_bytes{0};

void* counted_new(std::size_t size, std::align_val_t alignment) {
  const std::size_t align = static_cast<std::size_t>(alignment);
  const std::size_t head = std::max<std::size_t>(align, 64);  // holds the size, and keeps the alignment
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(head, (head + size + head - 1) / head * head));
  if (memory == nullptr) throw std::bad_alloc();
  reinterpret_cast<std::size_t*>(memory)[0] = size;
  if (align == 64) {
    const std::size_t now = live_bytes += size;
    for (std::size_t peak = peak_bytes; now > peak && !peak_bytes.compare_exchange_weak(peak, now);) {
    }
    std::fill_n(memory + head, size,
                std::byte{0xff});  // NaNs, in release builds too: nothing may be read before written
  }
  return memory + head;
}
void counted_delete(void* memory, std::align_val_t alignment) noexcept {
  if (memory == nullptr) return;
  const std::size_t head = std::max<std::size_t>(static_cast<std::size_t>(alignment), 64);
  auto* start = static_cast<std::byte*>(memory) - head;
  if (static_cast<std::size_t>(alignment) == 64) live_bytes -= reinterpret_cast<std::size_t*>(start)[0];
  std::free(start);
}

}  // namespace

void* operator new(std::size_t size, std::align_val_t alignment) { return counted_new(size, alignment); }
void* operator new[](std::size_t size, std::align_val_t alignment) { return counted_new(size, alignment); }
void operator delete(void* memory, std::align_val_t alignment) noexcept { counted_delete(memory, alignment); }
void operator delete[](void* memory, std::align_val_t alignment) noexcept { counted_delete(memory, alignment); }
void operator delete(void* memory, std::size_t, std::align_val_t alignment) noexcept {
  counted_delete(memory, alignment);
}
void operator delete[](void* memory, std::size_t, std::align_val_t alignment) noexcept {
  counted_delete(memory, alignment);
}

namespace qevict {
namespace {

class Allocations : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Rows, Allocations, ::testing::ValuesIn(every_method()), method_test_name);

TEST(Allocations, AreCounted) {
  const std::size_t before = live_bytes;
  {
    struct alignas(64) Block {
      std::byte data[192];
    };
    const auto block = std::make_unique<Block>();
    EXPECT_EQ(live_bytes, before + 192);
  }
  EXPECT_EQ(live_bytes, before);
}

TEST_P(Allocations, AreWhatIsReported) {
  for (const auto& [budget, base] : {std::pair<Budget, std::optional<BudgetBase>>{share(0.2), {}},
                                     {share(0.6), BudgetBase::current},
                                     {share(0.15), BudgetBase::context},
                                     {bytes(180000), {}}}) {
    const std::size_t before = live_bytes;
    {
      Session session = open_session(options_of(GetParam(), budget, base));
      EXPECT_EQ(live_bytes, before);
      for (const int turn : {90, 150, 1, 60}) {
        ASSERT_TRUE(session.prefill(random_prompt(turn), -1));
        EXPECT_EQ(live_bytes - before, session.report().bytes.total());
        EXPECT_EQ(session.report().bytes_prefill_end, session.report().bytes.total());
        for (int step = 0; step < 40; ++step) {
          ASSERT_TRUE(session.decode(best_token(session.logits())));
          ASSERT_EQ(live_bytes - before, session.report().bytes.total()) << step;
        }
      }
      session.reset();
      EXPECT_EQ(live_bytes, before);
      ASSERT_TRUE(session.prefill(random_prompt(50), 50));
    }
    EXPECT_EQ(live_bytes, before) << "everything was given back";
  }
}

// One layer of the prompt uncompressed, and the budget: measured, with the kernel's own copies and scratch beside it.
TEST_P(Allocations, OfAPromptArePeakKvAndWorkspace) {
  Session session = open_session(options_of(GetParam(), share(0.2)));
  const std::size_t before = live_bytes;
  peak_bytes = before;
  ASSERT_TRUE(session.prefill(random_prompt(900), 100));
  const CacheReport report = session.report();
  const std::size_t peak = peak_bytes - before;
  const std::size_t layer = (900 + 63) / 64 * 64 * 2 * kTinyTokenBytes;
  EXPECT_GE(peak, report.prefill_kv_peak);
  EXPECT_LE(report.prefill_kv_peak, layer + std::max(report.budget_effective, report.bytes.total()));
  EXPECT_LE(peak, report.prefill_kv_peak + report.workspace_peak);
}

}  // namespace
}  // namespace qevict
