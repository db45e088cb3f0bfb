#include "routing/stages.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace qevict {

void two_stages(std::span<Candidate> candidates, int slots, int first_stage_per_mille) {
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    const Candidate &x = candidates[a], &y = candidates[b];
    return x.score != y.score ? x.score > y.score : x.window < y.window;
  });
  const auto safe = static_cast<std::size_t>(slots) * static_cast<std::size_t>(first_stage_per_mille) / 1000;
  for (std::size_t i = 0; i < order.size(); ++i) {
    Candidate& candidate = candidates[order[i]];
    if (i < safe) {
      candidate.forced = true;
    } else {
      candidate.score = (candidate.score + kStageEpsilon) * candidate.weight;
    }
  }
}

}  // namespace qevict
