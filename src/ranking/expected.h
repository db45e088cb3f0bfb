// Expected attention (arXiv 2510.00636): what future queries will attend to, if they are distributed as the prompt's
// queries before RoPE were. It needs no attention rows. The prompt is ranked by it; while decoding, the accumulators go
// on as those of `decayed`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/half.h"
#include "base/rope.h"
#include "ranking/ranking.h"

namespace qevict {

inline constexpr RankingRow kExpected = {.name = "expected",
                                         .summary = "attention the prompt's queries let expect, then decayed",
                                         .rule = {.decay = 0.99f, .expected = true}};

// Mean and covariance of the queries of one head before RoPE, divided by their number.
struct QueryDistribution {
  std::vector<double> mean;        // [D]
  std::vector<double> covariance;  // [D][D]
};

// z(k) = mean.k scale + k^T covariance k scale^2 / 2: the logarithm of E[exp(q.k scale)] of normal queries.
// keys: [n][D] of the same space as the distribution. Returns [n].
std::vector<double> expected_logits(const QueryDistribution& queries, std::span<const float> keys, double scale);

// Gathers the queries of one layer's prompt.
class QueryStatistics {
 public:
  int n_heads() const { return static_cast<int>(counts_.size()); }
  // Starts a layer. scale: of its logits, 1/sqrt(head_dim) as the model says.
  void begin(int n_heads, int head_dim, double scale);
  // Rows as the model makes them, after RoPE: q [n_rows][n_heads][head_dim], the first at first_position. Called by all
  // threads of a team, which share the heads. The first kSkipped positions are left out.
  void add(const float* q, int n_rows, std::int64_t first_position, const Rope& rope, int thread, int n_threads);
  // Expected probability of each key, softmax over those from position `sinks` on (0 before), mean over the query heads
  // of kv_head. keys: [n][head_dim] after RoPE at positions 0 .. n-1; queries are expected at the next kHorizon.
  std::vector<float> probabilities(int kv_head, int group, std::span<const Half> keys, int sinks,
                                   const Rope& rope) const;

  static constexpr int kSkipped = 4;
  static constexpr int kHorizon = 512;

 private:
  int head_dim_ = 0;
  double scale_ = 0;
  std::vector<std::int64_t> counts_;  // [n_heads]
  std::vector<double> sums_;          // [n_heads][D]
  std::vector<float> products_;       // [n_heads][D][D]
};

}  // namespace qevict
