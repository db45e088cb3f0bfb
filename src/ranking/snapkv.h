// SnapKV (arXiv 2404.14469): mean attention of the last w queries on each token, over the group's heads too, then
// pooled over neighbours (baselines.md 4.3). The group's mean comes first, which makes no difference for averages.
#pragma once

#include "ranking/pooling.h"
#include "ranking/ranking.h"

namespace qevict {

// Mean over rows and query heads, [n].
inline std::vector<float> mean_attention(const Observation& head) {
  std::vector<float> mean(static_cast<std::size_t>(head.n));
  for (int t = 0; t < head.rows; ++t) {
    for (int g = 0; g < head.group; ++g) {
      const std::span<const float> row = head.row(t, g);
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += row[i];
    }
  }
  for (float& m : mean) m /= static_cast<float>(std::max(1, head.rows * head.group));
  return mean;
}

template <std::vector<float> (*kPool)(std::span<const float>, int), int kKernel>
void snapkv_scores(const Observation& head, std::span<float> scores) {
  std::ranges::copy(kPool(mean_attention(head), kKernel), scores.begin());
}

inline constexpr RankingRow kSnapKv = {.name = "snapkv",
                                       .summary = "attention of the last 32 tokens, averaged over 5 neighbours",
                                       .rule = {.kept = false},
                                       .observe = &snapkv_scores<&average_pool, 5>,
                                       .query_rows = 32};
inline constexpr RankingRow kSnapKvMax7 = {.name = "snapkv-max7",
                                           .summary = "attention of the last 32 tokens, largest of 7 neighbours",
                                           .rule = {.kept = false},
                                           .observe = &snapkv_scores<&max_pool, 7>,
                                           .query_rows = 32};
inline constexpr RankingRow kSnapKvW64 = {.name = "snapkv-w64",
                                          .summary = "attention of the last 64 tokens, averaged over 5 neighbours",
                                          .rule = {.kept = false},
                                          .observe = &snapkv_scores<&average_pool, 5>,
                                          .query_rows = 64};

}  // namespace qevict
