// The reference as a target: the double-precision functions behind the interface of the fast ones.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention_ref.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill_past.h"

namespace qevict {
namespace {

void decode(const DecodeTask& task) {
  attend_decode_reference(task.shape, task.head, task.range,
                          {task.query, static_cast<std::size_t>(task.shape.group) * task.shape.key_dim}, task.scale,
                          {task.weights, task.shape.group * task.weight_stride}, task.weight_stride, task.out);
}

std::size_t packed_bytes(int, int) { return 0; }  // it reads the f16 buffer
std::size_t scratch_floats(const HeadShape&, int, std::size_t) { return 0; }
void pack(const HeadShape&, const PackedHead&, int, int) {}

void stripe(const StripeTask& task) {
  const HeadShape& shape = task.shape;
  const int f16_tokens = task.past == nullptr ? 0 : task.past->f16_tokens();
  const int past_tokens = task.past == nullptr ? 0 : f16_tokens + task.past->code_tokens();
  const std::size_t group_floats = static_cast<std::size_t>(shape.group) * shape.key_dim;
  for (int r = 0; r < task.n_rows; ++r) {
    const ReferenceRow row =
        attend_row_reference(shape, task.past, task.head.keys, task.head.values, task.first_row + r + 1,
                             {task.query + r * task.query_stride, group_floats}, task.scale);
    for (std::size_t i = 0; i < row.out.size(); ++i) task.out[r * task.out_stride + i] = static_cast<float>(row.out[i]);
    if (task.sums == nullptr) continue;
    const double weight = task.row_weights == nullptr ? 1.0 : task.row_weights[r];
    for (std::size_t i = 0; i < row.n_tokens; ++i) {
      double sum = 0.0;
      for (int g = 0; g < shape.group; ++g) sum += row.probability[g * row.n_tokens + i];
      if (task.score_power > 1) sum = std::pow(sum / shape.group, task.score_power) * shape.group;
      const int token = static_cast<int>(i);
      std::size_t column = i;
      if (token >= f16_tokens) column = PastBlocks::f16_columns(task.past) + token - f16_tokens;
      if (token >= past_tokens) column = PastBlocks::columns(task.past) + token - past_tokens;
      task.sums[column] += static_cast<float>(sum * weight);
    }
  }
}

void attend_rows(const RowsTask& task) {
  const auto dim = static_cast<std::size_t>(task.key_dim), n = static_cast<std::size_t>(task.n_tokens);
  std::vector<double> row(n);
  for (std::size_t r = 0; r < static_cast<std::size_t>(task.n_queries); ++r) {
    const auto seen = static_cast<std::size_t>(task.seen[r]);
    for (std::size_t i = 0; i < seen; ++i) {
      row[i] = 0;
      for (std::size_t c = 0; c < dim; ++c)
        row[i] += static_cast<double>(task.keys[i * dim + c]) * static_cast<double>(task.queries[r * dim + c]);
      row[i] *= static_cast<double>(task.scale);
    }
    const double max = *std::max_element(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(seen));
    double sum = 0;
    for (std::size_t i = 0; i < seen; ++i) sum += row[i] = std::exp(row[i] - max);
    for (std::size_t i = 0; i < n; ++i) task.out[r * n + i] = i < seen ? static_cast<float>(row[i] / sum) : 0.0f;
  }
}

}  // namespace

const KernelTable& reference_kernels() {
  static const KernelTable table{.name = "reference",
                                 .decode_f16 = &decode,
                                 .decode_codes = &decode,
                                 .read_codes = {},
                                 .decode_window = nullptr,
                                 .prefill = {8, &packed_bytes, &scratch_floats, &pack, &stripe, true},
                                 .attend_rows = &attend_rows};
  return table;
}

}  // namespace qevict
