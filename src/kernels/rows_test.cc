// Rows of attention on every target against the reference, over odd sizes.
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "kernels/kernel_table.h"

namespace qevict {
namespace {

TEST(Rows, EqualTheReferenceOnEveryTarget) {
  for (const auto& [n, rows, dim] : {std::tuple{1, 1, 64}, {7, 3, 64}, {100, 96, 64}, {333, 32, 80}, {50, 224, 128}}) {
    Rng rng(static_cast<std::uint64_t>(n));
    const auto random = [&](int count, double deviation) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (float& value : values) value = static_cast<float>(rng.normal() * deviation);
      return values;
    };
    const std::vector<float> keys = random(n * dim, 1), queries = random(rows * dim, 3);
    std::vector<int> seen;
    for (int r = 0; r < rows; ++r) seen.push_back(std::max(1, n - rows + 1 + r));
    const auto run = [&](const KernelTable& table) {
      std::vector<float> out(static_cast<std::size_t>(rows * n), -1.0f);
      table.attend_rows({keys.data(), queries.data(), seen.data(), out.data(), n, rows, dim, 0.125f});
      return out;
    };
    const std::vector<float> want = run(reference_kernels());
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      for (int i = 0; i < n; ++i) sum += static_cast<double>(want[static_cast<std::size_t>(r * n + i)]);
      EXPECT_NEAR(sum, 1, 1e-5);
    }
    for (const KernelTable* table : kernel_tables()) {
      const std::vector<float> got = run(*table);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 2e-5f) << table->name << ", " << n << " tokens, at " << i;
    }
  }
}

}  // namespace
}  // namespace qevict
