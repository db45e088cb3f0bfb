#include "kernels/attention_ref.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace qevict {
namespace {

struct Token {
  std::vector<double> key;  // [key_dim], after RoPE
  std::vector<double> value;
};

Token f16_token(const HeadShape& shape, const Half* key, const Half* value) {
  Token token;
  for (int d = 0; d < shape.key_dim; ++d) token.key.push_back(to_float(key[d]));
  for (int d = 0; d < shape.value_dim; ++d) token.value.push_back(to_float(value[d]));
  return token;
}

void append_f16(const HeadShape& shape, const HeadView& head, int begin, int end, std::vector<Token>& tokens) {
  for (const F16Run& run : head.f16) {
    const int first = std::max(begin - run.first_token, 0);
    const int last = std::min(end - run.first_token, static_cast<int>(run.n_tokens));
    for (int i = first; i < last; ++i)
      tokens.push_back(f16_token(shape, run.keys + std::ptrdiff_t{i} * shape.key_dim,
                                 run.values + std::ptrdiff_t{i} * shape.value_dim));
  }
}

void append_codes(const HeadShape& shape, const HeadView& head, int begin, int end, std::vector<Token>& tokens) {
  if (begin == end) return;
  const WindowShape& window = head.window;
  std::vector<float> keys(static_cast<std::size_t>(window.tokens) * shape.key_dim);
  std::vector<float> values(static_cast<std::size_t>(window.tokens) * shape.value_dim);
  for (int w = begin / window.tokens; w < end / window.tokens; ++w) {
    const CodeWindow& code = head.codes[w];
    head.codec->decode(window, {code.record, head.codec->window_bytes(window)}, head.head_data, keys, values);
    for (int i = 0; i < window.tokens; ++i) {
      const std::span<float> key(keys.data() + std::ptrdiff_t{i} * shape.key_dim, shape.key_dim);
      if (!head.codec->keys_after_rope) head.rope->rotate(key, code.position + i);
      const float* value = values.data() + std::ptrdiff_t{i} * shape.value_dim;
      tokens.push_back({{key.begin(), key.end()}, {value, value + shape.value_dim}});
    }
  }
}

// softmax(q k / sqrt(d)) v, not yet divided by the denominator.
struct Softmax {
  double max = -std::numeric_limits<double>::infinity();
  double denom = 0.0;
  std::vector<double> weight;  // [n_tokens], exp(logit - max)
  std::vector<double> acc;     // [value_dim]
};

Softmax attend(const HeadShape& shape, const std::vector<Token>& tokens, const float* query, double scale) {
  Softmax result;
  result.acc.assign(shape.value_dim, 0.0);
  for (const Token& token : tokens) {
    double dot = 0.0;
    for (int d = 0; d < shape.key_dim; ++d) dot += query[d] * token.key[d];
    result.weight.push_back(dot * scale);
    result.max = std::max(result.max, dot * scale);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    double& weight = result.weight[i];
    weight = std::exp(weight - result.max);
    result.denom += weight;
    for (int d = 0; d < shape.value_dim; ++d) result.acc[d] += weight * tokens[i].value[d];
  }
  return result;
}

}  // namespace

void attend_decode_reference(const HeadShape& shape, const HeadView& head, const TokenRange& range,
                             std::span<const float> query, float scale, std::span<float> weights,
                             std::size_t weight_stride, const PartialView& out) {
  std::vector<Token> tokens;
  if (range.codes) {
    append_codes(shape, head, range.begin, range.end, tokens);
  } else {
    append_f16(shape, head, range.begin, range.end, tokens);
  }
  for (int g = 0; g < shape.group; ++g) {
    const Softmax softmax = attend(shape, tokens, query.data() + std::ptrdiff_t{g} * shape.key_dim, scale);
    out.max[g] = static_cast<float>(softmax.max);
    out.denom[g] = static_cast<float>(softmax.denom);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      weights[g * weight_stride + i] = static_cast<float>(softmax.weight[i]);
    for (int d = 0; d < shape.value_dim; ++d)
      out.acc[std::ptrdiff_t{g} * shape.value_dim + d] = static_cast<float>(softmax.acc[d]);
  }
}

ReferenceRow attend_row_reference(const HeadShape& shape, const HeadView* past, const Half* keys, const Half* values,
                                  int n_visible, std::span<const float> query, float scale) {
  std::vector<Token> tokens;
  if (past != nullptr) {
    append_f16(shape, *past, 0, past->f16_tokens(), tokens);
    append_codes(shape, *past, 0, past->code_tokens(), tokens);
  }
  for (int i = 0; i < n_visible; ++i)
    tokens.push_back(
        f16_token(shape, keys + std::ptrdiff_t{i} * shape.key_dim, values + std::ptrdiff_t{i} * shape.value_dim));
  ReferenceRow row;
  row.n_tokens = tokens.size();
  for (int g = 0; g < shape.group; ++g) {
    const Softmax softmax = attend(shape, tokens, query.data() + std::ptrdiff_t{g} * shape.key_dim, scale);
    for (double weight : softmax.weight) row.probability.push_back(weight / softmax.denom);
    for (double sum : softmax.acc) row.out.push_back(sum / softmax.denom);
  }
  return row;
}

}  // namespace qevict
