#include "routing/spending.h"

#include <algorithm>
#include <functional>
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

}  // namespace

TierCapacity spend_by_gain(std::span<const Candidate> candidates, const SlotCosts& costs, double loss) {
  std::vector<float> all;
  std::vector<float> unquantized;
  for (const Candidate& candidate : candidates) {
    all.push_back(candidate.score);
    if (candidate.tier != Tier::quantized) unquantized.push_back(candidate.score);
  }
  const std::vector<double> kept = prefix_sums(std::move(all));
  const std::vector<double> precise = prefix_sums(std::move(unquantized));

  TierCapacity best{.full = 0, .quantized = 0, .promotion = false};
  double best_gain = -1;
  const std::size_t most_full = std::min(precise.size() - 1, costs.history_bytes / costs.full_slot_bytes);
  for (std::size_t full = 0; full <= most_full; ++full) {
    const std::size_t quantized = (costs.history_bytes - full * costs.full_slot_bytes) / costs.quantized_slot_bytes;
    const std::size_t held = std::min(kept.size() - 1, full + quantized);
    const double gain = (1 - loss) * kept[held] + loss * precise[full];
    if (gain <= best_gain) continue;
    best_gain = gain;
    best.full = static_cast<int>(full);
    best.quantized = static_cast<int>(quantized);
  }
  return best;
}

}  // namespace qevict
