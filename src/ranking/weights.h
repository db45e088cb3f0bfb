// Value weights: a factor of each token's score that its value decides, frozen when its window is first routed. One row
// per weight in kWeights (weights.cc).
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/half.h"
#include "qevict/result.h"

namespace qevict {

struct WeightRow {
  std::string_view name;     // as users type it
  std::string_view summary;  // one line
  bool none = false;
  bool projected = false;  // through the model's output projection, else the value's own L2 norm
  bool of_layer = false;   // as a share of the sum over the KV heads of the layer
};

std::span<const WeightRow> weights();
// Null if there is none of that name.
const WeightRow* find_weight(std::string_view name);

// L2 norms of n values, [n][value_dim] -> [n].
void value_norms(std::span<const Half> values, int value_dim, std::span<float> norms);

// nu: mean over the query heads of a KV head of ||V W_O||_1, W_O the rows of the output projection that multiply this
// head (CriticalKV, arXiv 2502.03805; baselines.md 4.5). For each KV head of a layer values [n][value_dim] -> [n]. The
// model's; it is slow, and a call costs as much as some thousand values.
using ProjectedNorms = std::function<Result<void>(int layer, std::span<const std::span<const Half>> values,
                                                  std::span<const std::span<float>> norms)>;

// The norms of each head as its share of the sum over all heads (DefensiveKV's step 4). heads: [n_heads] of [n].
void share_over_heads(std::span<const std::span<float>> heads);

}  // namespace qevict
