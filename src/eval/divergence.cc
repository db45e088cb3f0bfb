#include "eval/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace qevict {
namespace {

struct LogSum {
  double max = 0;
  double log_sum = 0;  // ln sum exp(logit - max)
  std::size_t top = 0;
};

LogSum log_sum_of(std::span<const float> logits) {
  const auto top = std::max_element(logits.begin(), logits.end());
  LogSum result{.max = static_cast<double>(*top), .log_sum = 0, .top = static_cast<std::size_t>(top - logits.begin())};
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - result.max);
  result.log_sum = std::log(sum);
  return result;
}

double variance_of_mean(double mean, double mean_of_squares, std::size_t n) {
  return n > 10 ? std::max(0.0, mean_of_squares - mean * mean) / static_cast<double>(n - 1) : 0.0;
}

}  // namespace

TokenDivergence compare_logits(std::span<const float> base, std::span<const float> tested, std::int32_t next) {
  QEVICT_CHECK(base.size() == tested.size() && next >= 0 && static_cast<std::size_t>(next) < base.size(),
               "both rows are of one vocabulary, which holds the next token");
  const LogSum p = log_sum_of(base);
  const LogSum q = log_sum_of(tested);
  TokenDivergence result;
  for (std::size_t v = 0; v < base.size(); ++v) {
    const double ln_p = static_cast<double>(base[v]) - p.max - p.log_sum;
    if (ln_p <= -16) continue;
    result.kld += std::exp(ln_p) * (ln_p - (static_cast<double>(tested[v]) - q.max - q.log_sum));
  }
  const auto y = static_cast<std::size_t>(next);
  result.base_nll = p.max + p.log_sum - static_cast<double>(base[y]);
  result.tested_nll = q.max + q.log_sum - static_cast<double>(tested[y]);
  result.delta_p = std::exp(-result.tested_nll) - std::exp(-result.base_nll);
  result.same_top = p.top == q.top;
  return result;
}

double nll_of(std::span<const float> logits, std::int32_t token) {
  QEVICT_CHECK(token >= 0 && static_cast<std::size_t>(token) < logits.size(), "the token is in the vocabulary");
  const LogSum p = log_sum_of(logits);
  return p.max + p.log_sum - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

Estimate mean_of(std::span<const double> values) {
  if (values.empty()) return {};
  double sum = 0;
  double squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  const auto n = static_cast<double>(values.size());
  return {.value = sum / n, .uncertainty = std::sqrt(variance_of_mean(sum / n, squares / n, values.size()))};
}

double percentile(std::vector<double> values, double fraction) {
  QEVICT_CHECK(!values.empty(), "a percentile needs values");
  std::sort(values.begin(), values.end());
  const double at = fraction * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(at));
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

DivergenceSummary summarize(std::span<const TokenDivergence> tokens) {
  DivergenceSummary summary;
  summary.n_tokens = static_cast<std::int64_t>(tokens.size());
  if (tokens.empty()) return summary;
  const auto column = [&](auto&& of) {
    std::vector<double> values;
    values.reserve(tokens.size());
    for (const TokenDivergence& token : tokens) values.push_back(of(token));
    return values;
  };
  const std::vector<double> kld = column([](const TokenDivergence& t) { return t.kld; });
  summary.kld = mean_of(kld);
  const auto at = [&](double fraction) { return percentile(kld, fraction); };
  summary.kld_max = at(1);
  summary.kld_p999 = at(0.999);
  summary.kld_p99 = at(0.99);
  summary.kld_p95 = at(0.95);
  summary.kld_p90 = at(0.90);
  summary.kld_median = at(0.5);
  summary.kld_p10 = at(0.10);
  summary.kld_p5 = at(0.05);
  summary.kld_p1 = at(0.01);
  summary.kld_min = at(0);

  const std::vector<double> base = column([](const TokenDivergence& t) { return t.base_nll; });
  const std::vector<double> tested = column([](const TokenDivergence& t) { return t.tested_nll; });
  const Estimate base_nll = mean_of(base);
  const Estimate tested_nll = mean_of(tested);
  const auto perplexity = [](const Estimate& nll) {
    return Estimate{.value = std::exp(nll.value), .uncertainty = std::exp(nll.value) * nll.uncertainty};
  };
  summary.base_ppl = perplexity(base_nll);
  summary.tested_ppl = perplexity(tested_nll);
  double product = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) product += base[i] * tested[i];
  const auto n = static_cast<double>(tokens.size());
  const double covariance = tokens.size() > 10 ? (product / n - base_nll.value * tested_nll.value) / (n - 1) : 0.0;
  summary.ln_ppl_ratio = {
      .value = tested_nll.value - base_nll.value,
      .uncertainty = std::sqrt(std::max(0.0, base_nll.uncertainty * base_nll.uncertainty +
                                                 tested_nll.uncertainty * tested_nll.uncertainty - 2 * covariance))};

  summary.delta_p = mean_of(column([](const TokenDivergence& t) { return t.delta_p; }));
  const Estimate squares = mean_of(column([](const TokenDivergence& t) { return t.delta_p * t.delta_p; }));
  const double rms = std::sqrt(squares.value);
  summary.rms_delta_p = {.value = rms, .uncertainty = rms > 0 ? 0.5 / rms * squares.uncertainty : 0.0};
  const double same = mean_of(column([](const TokenDivergence& t) { return t.same_top ? 1.0 : 0.0; })).value;
  summary.same_top = {.value = same, .uncertainty = std::sqrt(variance_of_mean(same, same, tokens.size()))};
  return summary;
}

}  // namespace qevict
