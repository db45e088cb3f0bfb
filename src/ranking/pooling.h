// Sliding pooling over a row of scores, stride 1, an odd kernel centred on each token (baselines.md section 1).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

namespace qevict {

// Mean over the kernel; what lies beyond the ends counts as 0, so that the ends come out low.
inline std::vector<float> average_pool(std::span<const float> row, int kernel) {
  const int n = static_cast<int>(row.size()), half = kernel / 2;
  std::vector<float> pooled(row.size());
  for (int i = 0; i < n; ++i) {
    float sum = 0;
    for (int j = std::max(0, i - half); j <= std::min(n - 1, i + half); ++j) sum += row[static_cast<std::size_t>(j)];
    pooled[static_cast<std::size_t>(i)] = sum / static_cast<float>(kernel);
  }
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
