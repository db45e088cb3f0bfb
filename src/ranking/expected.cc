#include "ranking/expected.h"

#include <algorithm>
#include <cmath>

namespace qevict {
namespace {

// Mean rotation over the positions [first, first + kHorizon): as a rotation, it mixes the channels of a pair only.
struct MeanRotation {
  std::vector<double> cosine, sine;  // [pairs], magnitude included
  const Rope& rope;

  MeanRotation(const Rope& r, std::int64_t first)
      : cosine(static_cast<std::size_t>(r.pairs())), sine(cosine.size()), rope(r) {
    for (int position = 0; position < QueryStatistics::kHorizon; ++position) {
      for (std::size_t pair = 0; pair < cosine.size(); ++pair) {
        const double angle = static_cast<double>(first + position) * static_cast<double>(r.frequency[pair]);
        cosine[pair] += std::cos(angle);
        sine[pair] += std::sin(angle);
      }
    }
    const double factor = static_cast<double>(r.magnitude) / QueryStatistics::kHorizon;
    for (double& c : cosine) c *= factor;
    for (double& s : sine) s *= factor;
  }
  // x[channel * stride], in place.
  void apply(double* x, std::size_t stride) const {
    for (int pair = 0; pair < rope.pairs(); ++pair) {
      double& a = x[static_cast<std::size_t>(rope.first(pair)) * stride];
      double& b = x[static_cast<std::size_t>(rope.second(pair)) * stride];
      const double c = cosine[static_cast<std::size_t>(pair)], s = sine[static_cast<std::size_t>(pair)];
      const double turned = a * c - b * s;
      b = a * s + b * c;
      a = turned;
    }
  }
};

}  // namespace

std::vector<double> expected_logits(const QueryDistribution& queries, std::span<const float> keys, double scale) {
  const std::size_t dim = queries.mean.size();
  std::vector<double> logits(keys.size() / dim);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const std::span<const float> key = keys.subspan(i * dim, dim);
    double linear = 0, square = 0;
    for (std::size_t a = 0; a < dim; ++a) {
      const double* row = queries.covariance.data() + a * dim;
      double sum = 0;
      for (std::size_t b = 0; b < dim; ++b) sum += row[b] * static_cast<double>(key[b]);
      square += sum * static_cast<double>(key[a]);
      linear += queries.mean[a] * static_cast<double>(key[a]);
    }
    logits[i] = linear * scale + square * scale * scale / 2;
  }
  return logits;
}

void QueryStatistics::begin(int n_heads, int head_dim, double scale) {
  head_dim_ = head_dim;
  scale_ = scale;
  const auto dim = static_cast<std::size_t>(head_dim);
  counts_.assign(static_cast<std::size_t>(n_heads), 0);
  sums_.assign(counts_.size() * dim, 0);
  products_.assign(counts_.size() * dim * dim, 0);
}

void QueryStatistics::add(const float* q, int n_rows, std::int64_t first_position, const Rope& rope, int thread,
                          int n_threads) {
  const auto dim = static_cast<std::size_t>(head_dim_);
  std::vector<float> query(dim);
  for (std::size_t head = static_cast<std::size_t>(thread); head < counts_.size();
       head += static_cast<std::size_t>(n_threads)) {
    double* sum = sums_.data() + head * dim;
    float* products = products_.data() + head * dim * dim;
    for (int row = 0; row < n_rows; ++row) {
      const std::int64_t position = first_position + row;
      if (position < kSkipped) continue;
      std::copy_n(q + (static_cast<std::size_t>(row) * counts_.size() + head) * dim, dim, query.begin());
      rope.unrotate(query, static_cast<double>(position));
      ++counts_[head];
      for (std::size_t a = 0; a < dim; ++a) {
        sum[a] += static_cast<double>(query[a]);
        float* of_a = products + a * dim;
        for (std::size_t b = 0; b < dim; ++b) of_a[b] += query[a] * query[b];
      }
    }
  }
}

std::vector<float> QueryStatistics::probabilities(int kv_head, int group, std::span<const Half> keys, int sinks,
                                                  const Rope& rope) const {
  const auto dim = static_cast<std::size_t>(head_dim_);
  const std::size_t n = keys.size() / dim;
  std::vector<float> result(n);
  if (n <= static_cast<std::size_t>(sinks)) return result;
  std::vector<float> values(keys.size());
  std::transform(keys.begin(), keys.end(), values.begin(), to_float);
  const MeanRotation rotation(rope, static_cast<std::int64_t>(n));
  for (int g = 0; g < group; ++g) {
    const auto head = static_cast<std::size_t>(kv_head * group + g);
    const double count = static_cast<double>(std::max<std::int64_t>(counts_[head], 1));
    QueryDistribution queries{.mean = std::vector<double>(dim), .covariance = std::vector<double>(dim * dim)};
    for (std::size_t a = 0; a < dim; ++a) queries.mean[a] = sums_[head * dim + a] / count;
    for (std::size_t a = 0; a < dim; ++a)
      for (std::size_t b = 0; b < dim; ++b)
        queries.covariance[a * dim + b] =
            static_cast<double>(products_[(head * dim + a) * dim + b]) / count - queries.mean[a] * queries.mean[b];
    rotation.apply(queries.mean.data(), 1);
    for (std::size_t b = 0; b < dim; ++b) rotation.apply(queries.covariance.data() + b, dim);      // R S
    for (std::size_t a = 0; a < dim; ++a) rotation.apply(queries.covariance.data() + a * dim, 1);  // R S R^T
    const std::vector<double> logits = expected_logits(queries, values, scale_);
    const auto first = logits.begin() + sinks;
    const double most = *std::max_element(first, logits.end());
    double total = 0;
    for (auto z = first; z != logits.end(); ++z) total += std::exp(*z - most);
    for (std::size_t i = static_cast<std::size_t>(sinks); i < n; ++i)
      result[i] += static_cast<float>(std::exp(logits[i] - most) / total / group);
  }
  return result;
}

}  // namespace qevict
