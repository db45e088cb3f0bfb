// Sliding pooling over a row of scores, stride 1, an odd kernel centred on each token (baselines.md section 1).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

namespace qevict {

// Mean over the kernel; what lies beyond the ends counts as 0, so that the ends come out low. pooled: as long as row.
inline void average_pool(std::span<const float> row, int kernel, std::span<float> pooled) {
  const int n = static_cast<int>(row.size());
  std::ranges::fill(pooled, 0.0f);
  for (int shift = -(kernel / 2); shift <= kernel / 2; ++shift) {
    const int begin = std::max(0, -shift), count = std::min(n, n - shift) - begin;
    if (count <= 0) continue;
    const float* from = row.data() + (begin + shift);
    float* to = pooled.data() + begin;
    for (int i = 0; i < count; ++i) to[i] += from[i];
  }
  for (float& sum : pooled) sum /= static_cast<float>(kernel);
}
inline std::vector<float> average_pool(std::span<const float> row, int kernel) {
  std::vector<float> pooled(row.size());
  average_pool(row, kernel, pooled);
  return pooled;
}

// Largest within the kernel.
inline std::vector<float> max_pool(std::span<const float> row, int kernel) {
  const int n = static_cast<int>(row.size()), half = kernel / 2;
  std::vector<float> pooled(row.size());
  for (int i = 0; i < n; ++i) {
    const auto begin = row.begin() + std::max(0, i - half);
    pooled[static_cast<std::size_t>(i)] = *std::max_element(begin, row.begin() + std::min(n, i + half + 1));
  }
  return pooled;
}

}  // namespace qevict
