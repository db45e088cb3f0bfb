#include "ranking/ranking.h"

#include <algorithm>
#include <cmath>

#include "codec/zip.h"
#include "ranking/rankings.h"

namespace qevict {
namespace {

constexpr RankingRow kRankings[] = {
    kCumulative, kDecayed,   kObserved,  kBlended,         kExpected, kPnorm,   kMean,    kNewest, kSnapKv,
    kSnapKvMax7, kSnapKvW64, kDefensive, kDefensiveWindow, kKeyDiff,  kKeyNorm, kRecency, kRandom, kProbes};

}  // namespace

float ScoreRule::row_weight(int row, int n_rows) const {
  const int age = n_rows - 1 - row;
  const float share = observed_rows > 0 && age >= observed_rows ? unobserved : 1.0f;
  return decay == 1 ? share : share * static_cast<float>(std::pow(static_cast<double>(decay), age));
}

std::vector<float> ScoreRule::row_weights(int n_rows) const {
  std::vector<float> weights(static_cast<std::size_t>(n_rows));
  if (probes) {
    for (const int row : zip_probes(n_rows, kProbeSeed)) weights[static_cast<std::size_t>(row)] = 1;
    return weights;
  }
  for (int row = 0; row < n_rows; ++row) weights[static_cast<std::size_t>(row)] = row_weight(row, n_rows);
  return weights;
}

std::span<const RankingRow> rankings() { return kRankings; }

const RankingRow* find_ranking(std::string_view name) {
  const auto row =
      std::find_if(std::begin(kRankings), std::end(kRankings), [&](const RankingRow& r) { return r.name == name; });
  return row == std::end(kRankings) ? nullptr : row;
}

}  // namespace qevict
