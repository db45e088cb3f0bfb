#include "ranking/weights.h"

#include <algorithm>
#include <cmath>

namespace qevict {
namespace {

constexpr WeightRow kWeights[] = {
    {.name = "none", .summary = "scores as they are", .none = true},
    {.name = "value-norm", .summary = "L2 norm of the value"},
    {.name = "projected-norm",
     .summary = "L1 norm of the value behind the output projection (CriticalKV)",
     .projected = true},
    {.name = "projected-share",
     .summary = "the same, as a share of the layer's KV heads (DefensiveKV)",
     .projected = true,
     .of_layer = true},
};

}  // namespace

std::span<const WeightRow> weights() { return kWeights; }

const WeightRow* find_weight(std::string_view name) {
  const auto row = std::ranges::find(kWeights, name, &WeightRow::name);
  return row == std::end(kWeights) ? nullptr : row;
}

void value_norms(std::span<const Half> values, int value_dim, std::span<float> norms) {
  const auto dim = static_cast<std::size_t>(value_dim);
  for (std::size_t i = 0; i < norms.size(); ++i) {
    float square = 0;
    for (const Half v : values.subspan(i * dim, dim)) square += to_float(v) * to_float(v);
    norms[i] = std::sqrt(square);
  }
}

void share_over_heads(std::span<const std::span<float>> heads) {
  for (std::size_t i = 0; !heads.empty() && i < heads.front().size(); ++i) {
    float sum = 0;
    for (const std::span<float> norms : heads) sum += norms[i];
    for (const std::span<float> norms : heads)
      norms[i] = sum > 0 ? norms[i] / sum : 1 / static_cast<float>(heads.size());
  }
}

}  // namespace qevict
