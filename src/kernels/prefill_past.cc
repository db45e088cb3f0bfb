#include "kernels/prefill_past.h"

#include <algorithm>
#include <vector>

#include "kernels/token_rows.h"

namespace qevict {
namespace {

struct Parts {
  std::size_t query, acc, inverse, column_weight, past_block, end;
  explicit Parts(const HeadShape& shape, std::size_t rows, std::size_t row_floats) {
    query = rows * row_floats;
    acc = query + aligned(rows * shape.key_dim);
    inverse = acc + aligned(rows * shape.value_dim);
    column_weight = inverse + aligned(rows);
    past_block = column_weight + aligned(rows);
    end = past_block + PastBlocks::floats(shape);
  }
  static std::size_t aligned(std::size_t floats) { return (floats + 15) / 16 * 16; }
};

}  // namespace

std::size_t StripeScratch::floats(const HeadShape& shape, int n_rows, std::size_t row_floats) {
  return Parts(shape, static_cast<std::size_t>(n_rows) * shape.group, row_floats).end;
}

StripeScratch::StripeScratch(const StripeTask& task) : logits(task.scratch) {
  const Parts parts(task.shape, static_cast<std::size_t>(task.n_rows) * task.shape.group, task.row_floats);
  query = task.scratch + parts.query;
  acc = task.scratch + parts.acc;
  inverse = task.scratch + parts.inverse;
  column_weight = task.scratch + parts.column_weight;
  past_block = task.scratch + parts.past_block;
}

std::size_t PastBlocks::floats(const HeadShape& shape) {
  return std::size_t{kKeyBlock} * (2 * shape.key_dim + shape.value_dim);
}

std::size_t PastBlocks::f16_columns(const HeadView* past) { return past == nullptr ? 0 : padded(past->f16_tokens()); }

std::size_t PastBlocks::columns(const HeadView* past) {
  return past == nullptr ? 0 : f16_columns(past) + padded(past->code_tokens());
}

PastBlocks::PastBlocks(const StripeTask& task, float* scratch)
    : task_(task),
      keys_(scratch),
      values_(keys_ + std::ptrdiff_t{kKeyBlock} * task.shape.key_dim),
      packed_(values_ + std::ptrdiff_t{kKeyBlock} * task.shape.value_dim) {}

void PastBlocks::restart() {
  begin_ = 0;
  tokens_ = 0;
  codes_ = false;
}

bool PastBlocks::next() {
  if (task_.past == nullptr) return false;
  begin_ += tokens_;
  if (!codes_ && begin_ >= task_.past->f16_tokens()) {
    codes_ = true;
    begin_ = 0;
  }
  const int total = codes_ ? task_.past->code_tokens() : task_.past->f16_tokens();
  tokens_ = std::min(kKeyBlock, total - begin_);
  if (tokens_ <= 0) return false;
  column_ = (codes_ ? f16_columns(task_.past) : 0) + begin_;
  codes_ ? load_codes() : load_f16();
  std::fill(keys_ + std::ptrdiff_t{tokens_} * task_.shape.key_dim, values_, 0.0f);
  std::fill(values_ + std::ptrdiff_t{tokens_} * task_.shape.value_dim, packed_, 0.0f);
  return true;
}

void PastBlocks::load_f16() {
  const Half* rows[kKeyBlock];
  const auto load = [&](TokenRows::Of of, int dim, float* out) {
    TokenRows(*task_.past, begin_, begin_ + tokens_, of, dim).next(rows, kKeyBlock);
    for (int i = 0; i < tokens_; ++i) std::transform(rows[i], rows[i] + dim, out + std::ptrdiff_t{i} * dim, to_float);
  };
  load(TokenRows::Of::keys, task_.shape.key_dim, keys_);
  load(TokenRows::Of::values, task_.shape.value_dim, values_);
}

void PastBlocks::load_codes() {
  const int window_tokens = task_.past->window.tokens;
  const std::size_t key_dim = task_.shape.key_dim, value_dim = task_.shape.value_dim;
  thread_local std::vector<float> window;
  window.resize(window_tokens * (key_dim + value_dim));
  float* keys = window.data();
  float* values = keys + window_tokens * key_dim;
  const int end = begin_ + tokens_;
  for (int w = begin_ / window_tokens; w * window_tokens < end; ++w) {
    task_.decode_window(*task_.past, task_.past->codes[w], keys, values);
    const int first = std::max(begin_, w * window_tokens);
    const int last = std::min(end, (w + 1) * window_tokens);
    const int within = first - w * window_tokens;
    std::copy_n(keys + within * key_dim, (last - first) * key_dim, keys_ + (first - begin_) * key_dim);
    std::copy_n(values + within * value_dim, (last - first) * value_dim, values_ + (first - begin_) * value_dim);
  }
}

void PastBlocks::pack_keys(int group) {
  const int dim = task_.shape.key_dim;
  for (int key = 0; key < kKeyBlock; ++key) {
    float* column = packed_ + std::ptrdiff_t{key / group} * group * dim + key % group;
    for (int c = 0; c < dim; ++c) column[c * group] = keys_[key * dim + c];
  }
}

}  // namespace qevict
