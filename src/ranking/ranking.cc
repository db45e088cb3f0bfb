#include "ranking/ranking.h"

#include <algorithm>
#include <cmath>

#include "ranking/rankings.h"

namespace qevict {
namespace {

constexpr RankingRow kRankings[] = {kCumulative, kDecayed, kObserved, kBlended, kExpected,
                                    kPnorm,      kKeyNorm, kRecency,  kRandom};

}  // namespace

float ScoreRule::row_weight(int row, int n_rows) const {
  const int age = n_rows - 1 - row;
  const float share = observed_rows > 0 && age >= observed_rows ? unobserved : 1.0f;
  return decay == 1 ? share : share * static_cast<float>(std::pow(static_cast<double>(decay), age));
}

std::span<const RankingRow> rankings() { return kRankings; }

const RankingRow* find_ranking(std::string_view name) {
  const auto row =
      std::find_if(std::begin(kRankings), std::end(kRankings), [&](const RankingRow& r) { return r.name == name; });
  return row == std::end(kRankings) ? nullptr : row;
}

}  // namespace qevict
