#include "routing/spending.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

namespace qevict {
namespace {

// sums[i] = sum of the i largest scores.
std::vector<double> prefix_sums(std::vector<float> scores) {
  std::sort(scores.begin(), scores.end(), std::greater<>());
  std::vector<double> sums(scores.size() + 1);
  for (std::size_t i = 0; i < scores.size(); ++i) sums[i + 1] = sums[i] + static_cast<double>(scores[i]);
  return sums;
}

// What scores are counted from: 0, or the lowest where some are negative, so that a window is never worth less than
// none.
float lowest_score(std::span<const Candidate> candidates) {
  float lowest = 0;
  for (const Candidate& candidate : candidates) lowest = std::min(lowest, candidate.score);
  return lowest;
}

double mean_score(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += static_cast<double>(candidate.score);
  const auto n = static_cast<double>(candidates.size());
  return candidates.empty() ? 0 : sum / n - static_cast<double>(lowest_score(candidates));
}

std::size_t quantized_share(const SpendingRule& rule, std::size_t bytes) {
  if (rule.costs.quantized_slot_bytes == 0) return 0;
  const auto q = static_cast<std::size_t>(rule.quantized_per_mille);
  return bytes / 1000 * q + bytes % 1000 * q / 1000;
}

TierCapacity best_split(std::span<const Candidate> candidates, const SpendingRule& rule, std::size_t history_bytes) {
  std::vector<float> all;
  std::vector<float> unquantized;
  const float lowest = lowest_score(candidates);
  for (const Candidate& candidate : candidates) {
    all.push_back(candidate.score - lowest);
    if (candidate.tier != Tier::quantized) unquantized.push_back(candidate.score - lowest);
  }
  const std::vector<double> kept = prefix_sums(std::move(all));
  const std::vector<double> precise = prefix_sums(std::move(unquantized));

  const double held_worth = rule.coverage * mean_score(candidates);
  TierCapacity best{.full = 0, .quantized = 0, .promotion = false};
  double best_gain = -1;
  const std::size_t most_full = std::min(precise.size() - 1, history_bytes / rule.costs.full_slot_bytes);
  for (std::size_t full = 0; full <= most_full; ++full) {
    const std::size_t quantized = (history_bytes - full * rule.costs.full_slot_bytes) / rule.costs.quantized_slot_bytes;
    const std::size_t held = std::min(kept.size() - 1, full + quantized);
    const double gain =
        (1 - rule.loss) * kept[held] + rule.loss * precise[full] + held_worth * static_cast<double>(held);
    if (gain <= best_gain) continue;
    best_gain = gain;
    best.full = static_cast<int>(full);
    best.quantized = static_cast<int>(quantized);
  }
  return best;
}

// Mean price of a window where the split is fixed.
std::size_t mean_price(const SpendingRule& rule) {
  if (rule.costs.quantized_slot_bytes == 0) return rule.costs.full_slot_bytes;
  const double q = rule.quantized_per_mille / 1000.0;
  const double windows_per_byte = q / static_cast<double>(rule.costs.quantized_slot_bytes) +
                                  (1 - q) / static_cast<double>(rule.costs.full_slot_bytes);
  return static_cast<std::size_t>(1 / windows_per_byte);
}

}  // namespace

TierCapacity spend(std::span<const Candidate> candidates, const SpendingRule& rule, std::size_t history_bytes) {
  if (rule.by_gain && rule.costs.quantized_slot_bytes > 0) return best_split(candidates, rule, history_bytes);
  const std::size_t share = quantized_share(rule, history_bytes);
  return {.full = static_cast<int>((history_bytes - share) / rule.costs.full_slot_bytes),
          .quantized = share > 0 ? static_cast<int>(share / rule.costs.quantized_slot_bytes) : 0,
          .promotion = true};
}

std::vector<Purchase> buys(std::span<const Candidate> candidates, const SpendingRule& rule) {
  std::vector<Purchase> result;
  const auto add = [&](double gain, std::size_t bytes) {
    result.push_back({.gain_per_byte = gain / static_cast<double>(bytes), .bytes = bytes});
  };
  const std::size_t price = mean_price(rule);
  const double held_worth = rule.coverage * mean_score(candidates);
  const auto lowest = static_cast<double>(lowest_score(candidates));
  for (const Candidate& candidate : candidates) {
    const double score = static_cast<double>(candidate.score) - lowest;
    if (!rule.by_gain || rule.costs.quantized_slot_bytes == 0) {
      add(candidate.forced ? std::numeric_limits<double>::infinity() : score, price);
      continue;
    }
    add((1 - rule.loss) * score + held_worth, rule.costs.quantized_slot_bytes);
    if (candidate.tier != Tier::quantized)
      add(rule.loss * score, rule.costs.full_slot_bytes - rule.costs.quantized_slot_bytes);
  }
  return result;
}

}  // namespace qevict
