#include "ranking/defensive.h"

#include <algorithm>
#include <numeric>

#include "ranking/pooling.h"
#include "ranking/snapkv.h"

namespace qevict {
namespace {

double sum_of(std::span<const float> row) {
  constexpr std::size_t kLanes = 8;  // side by side
  double lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes)
    for (std::size_t k = 0; k < kLanes; ++k) lanes[k] += static_cast<double>(row[i + k]);
  for (; i < row.size(); ++i) lanes[0] += static_cast<double>(row[i]);
  return std::accumulate(lanes, lanes + kLanes, 0.0);
}

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

// The first tokens by mean attention, until they reach `mass`.
std::vector<char> until_mass(const Observation& head, double mass, int most) {
  const std::vector<float> mean = mean_attention(head);
  const double total = sum_of(mean);
  std::vector<std::size_t> order(mean.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return mean[a] > mean[b]; });
  std::vector<char> forced(mean.size());
  double reached = 0;
  int count = 0;
  for (const std::size_t i : order) {
    reached += total > 0 ? static_cast<double>(mean[i]) / total : 0;
    if (count >= most || reached >= mass) break;
    forced[i] = 1;
    ++count;
  }
  return forced;
}

}  // namespace

void defensive_scores(const Observation& head, std::span<float> scores, int kernel) {
  std::fill(scores.begin(), scores.end(), 0.0f);
  std::vector<float> pooled(scores.size());
  for (int t = 0; t < head.rows; ++t) {
    for (int g = 0; g < head.group; ++g) {
      average_pool(head.row(t, g), kernel, pooled);
      const double total = sum_of(pooled);
      const auto scale = static_cast<float>(total > 0 ? sum_of(head.row(t, g)) / total : 0);
      for (std::size_t i = 0; i < pooled.size(); ++i) scores[i] = std::max(scores[i], scale * pooled[i]);
    }
  }
  const auto mean = static_cast<float>(sum_of(scores) / std::max(1, head.n));
  for (float& score : scores) score = std::max(score, mean);
}

std::vector<std::vector<char>> defensive_forced(std::span<const Observation* const> heads, int most, Beta beta) {
  double beta_mass = 0;
  for (const Observation* head : heads) beta_mass += covered(*head, beta) / static_cast<double>(heads.size());
  std::vector<std::vector<char>> forced;
  for (const Observation* head : heads) forced.push_back(until_mass(*head, kDefensiveMass - beta_mass, most));
  return forced;
}

}  // namespace qevict
