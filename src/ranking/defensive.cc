#include "ranking/defensive.h"

#include <algorithm>
#include <numeric>

#include "ranking/pooling.h"
#include "ranking/snapkv.h"

namespace qevict {
namespace {

double sum_of(std::span<const float> row) { return std::accumulate(row.begin(), row.end(), 0.0); }

// Mean over rows and query heads of the mass that Beta means.
double covered(const Observation& head, Beta beta) {
  const auto last = static_cast<std::size_t>(std::min(head.rows, head.n));
  double mass = 0;
  for (int t = 0; t < head.rows; ++t) {
    for (int g = 0; g < head.group; ++g) {
      const std::span<const float> row = head.row(t, g);
      mass += beta == Beta::code ? sum_of(row.last(last)) : 1 - sum_of(row);
    }
  }
  return mass / std::max(1, head.rows * head.group);
}

}  // namespace

void defensive_scores(const Observation& head, std::span<float> scores, int kernel) {
  std::fill(scores.begin(), scores.end(), 0.0f);
  for (int t = 0; t < head.rows; ++t) {
    for (int g = 0; g < head.group; ++g) {
      const std::vector<float> pooled = average_pool(head.row(t, g), kernel);
      const double total = sum_of(pooled);
      const auto scale = static_cast<float>(total > 0 ? sum_of(head.row(t, g)) / total : 0);
      for (std::size_t i = 0; i < pooled.size(); ++i) scores[i] = std::max(scores[i], scale * pooled[i]);
    }
  }
  const auto mean = static_cast<float>(sum_of(scores) / std::max(1, head.n));
  for (float& score : scores) score = std::max(score, mean);
}

std::vector<char> defensive_forced(std::span<const Observation* const> heads, std::size_t head, int most, Beta beta) {
  double beta_mass = 0;
  for (const Observation* other : heads) beta_mass += covered(*other, beta) / static_cast<double>(heads.size());
  const std::vector<float> mean = mean_attention(*heads[head]);
  const double total = sum_of(mean);
  std::vector<std::size_t> order(mean.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return mean[a] > mean[b]; });
  std::vector<char> forced(mean.size());
  double mass = 0;
  int count = 0;
  for (const std::size_t i : order) {
    mass += total > 0 ? static_cast<double>(mean[i]) / total : 0;
    if (count >= most || mass >= kDefensiveMass - beta_mass) break;
    forced[i] = 1;
    ++count;
  }
  return forced;
}

}  // namespace qevict
