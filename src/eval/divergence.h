// How far one model's next-token distributions are from another's on the same text: llama.cpp's statistics
// (llama-perplexity --kl-divergence), on exact fp32 logits.
//
// Per scored token, with p the base's distribution, q the tested one's and y the true next token:
//   KLD = sum over v of p(v) (ln p(v) - ln q(v)), terms with ln p <= -16 left out; NLL = -ln p(y); delta = q(y) - p(y).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace qevict {

struct TokenDivergence {
  double kld = 0;
  double base_nll = 0;    // nats
  double tested_nll = 0;  // nats
  double delta_p = 0;     // q(y) - p(y)
  bool same_top = false;  // equal argmax, the lowest index on ties
};

// base, tested: [n_vocab] logits. REQUIRES: 0 <= next < n_vocab.
TokenDivergence compare_logits(std::span<const float> base, std::span<const float> tested, std::int32_t next);

// -ln p(token), nats. REQUIRES: 0 <= token < n_vocab.
double nll_of(std::span<const float> logits, std::int32_t token);

struct Estimate {
  double value = 0;
  double uncertainty = 0;  // of the mean; 0 for ten values or fewer
};

// Mean and sqrt((E[x^2] - E[x]^2) / (N - 1)).
Estimate mean_of(std::span<const double> values);
// Linear interpolation at h = fraction * (N - 1) of the sorted values. REQUIRES: not empty.
double percentile(std::vector<double> values, double fraction);

struct DivergenceSummary {
  std::int64_t n_tokens = 0;
  Estimate kld;
  double kld_max = 0, kld_p999 = 0, kld_p99 = 0, kld_p95 = 0, kld_p90 = 0, kld_median = 0, kld_p10 = 0, kld_p5 = 0,
         kld_p1 = 0, kld_min = 0;
  Estimate base_ppl, tested_ppl;
  Estimate ln_ppl_ratio;  // ln(PPL(tested) / PPL(base))
  Estimate delta_p;
  Estimate rms_delta_p;
  Estimate same_top;  // share
};

DivergenceSummary summarize(std::span<const TokenDivergence> tokens);

}  // namespace qevict
