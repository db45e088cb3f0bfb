// Kernels that read codes in rounded arithmetic may add at most 5 % of the codec's own error to logits and outputs.
#include <gtest/gtest.h>

#include "kernels/kernel_test_support.h"

namespace qevict {
namespace {

constexpr double kShareOfCodecError = 0.05;

struct Plain {
  std::vector<double> logits;  // [group][n], of the keys before they were coded
  std::vector<double> out;     // [group][value_dim]
};

// turned: keys after RoPE.
Plain plain_attention(const HeadShape& shape, const std::vector<float>& turned, const std::vector<float>& values,
                      const std::vector<float>& query, float scale) {
  Plain plain;
  const int n = static_cast<int>(turned.size()) / shape.key_dim;
  for (int g = 0; g < shape.group; ++g) {
    std::vector<double> p;
    for (int i = 0; i < n; ++i) {
      double dot = 0.0;
      for (int d = 0; d < shape.key_dim; ++d)
        dot += static_cast<double>(query[g * shape.key_dim + d]) * turned[i * shape.key_dim + d];
      plain.logits.push_back(dot * scale);
      p.push_back(std::exp(dot * scale));
    }
    double denom = 0.0;
    for (const double x : p) denom += x;
    for (int d = 0; d < shape.value_dim; ++d) {
      double sum = 0.0;
      for (int i = 0; i < n; ++i) sum += p[i] * values[i * shape.value_dim + d];
      plain.out.push_back(sum / denom);
    }
  }
  return plain;
}

std::vector<double> logits_of(const TestPartial& partial) {
  std::vector<double> logits;
  for (std::size_t i = 0; i < partial.weights.size(); ++i)
    logits.push_back(partial.max[i / partial.n] + std::log(static_cast<double>(partial.weights[i])));
  return logits;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

class CodesError : public ::testing::TestWithParam<std::string_view> {};

// bias: mean of every 16th channel, as models with key biases have, in deviations of the others.
TEST_P(CodesError, StaysFarBelowTheCodecsOwn) {
  const CodecRow& codec = *find_codec(GetParam());
  for (const int dim : {64, 128}) {
    for (const bool neox : {false, true}) {
      for (const double bias : {1.0, 30.0}) {
        Rng rng(12);
        TestHead head;
        head.shape = {dim, dim, 3};
        head.rope = test_rope(dim / 2, neox);
        head.codec = &codec;
        const int tokens = codec.window_tokens, n_windows = 384 / tokens, n_tokens = n_windows * tokens;
        head.window = {tokens, dim, dim};
        std::vector<float> mean, deviation, keys, values;
        for (int d = 0; d < dim; ++d) {
          mean.push_back(static_cast<float>(rng.normal() * (d % 16 == 3 ? bias : 1.0)));
          deviation.push_back(0.3f + std::abs(static_cast<float>(rng.normal())));
        }
        for (int i = 0; i < n_tokens; ++i) {
          for (int d = 0; d < dim; ++d) keys.push_back(mean[d] + deviation[d] * static_cast<float>(rng.normal()));
          for (int d = 0; d < dim; ++d) values.push_back(static_cast<float>(rng.normal()));
        }
        std::vector<float> turned = keys;
        for (int i = 0; i < n_tokens; ++i)
          head.rope.rotate(std::span(turned).subspan(std::size_t{1} * i * dim, dim), 5 + i);
        const std::span<const float> given = codec.keys_after_rope ? turned : keys;
        head.head_data.resize(codec.head_bytes(head.window));
        if (!head.head_data.empty()) codec.estimate_head(head.window, given, values, head.head_data);
        for (int w = 0; w < n_windows; ++w) {
          const std::size_t n = std::size_t{1} * tokens * dim, at = w * n;
          head.records.emplace_back(codec.window_bytes(head.window));
          ASSERT_TRUE(codec.encode(head.window, given.subspan(at, n), std::span<const float>(values).subspan(at, n),
                                   head.head_data, head.records.back()));
          head.windows.push_back({head.records.back().data(), 5 + tokens * w});
        }
        const std::vector<float> query = random_query(head.shape, 1.0, rng);
        const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
        const TokenRange range{0, n_tokens, true};
        const Plain plain = plain_attention(head.shape, turned, values, query, scale);
        const TestPartial exact = reference_range(head, range, query, scale);
        for_each_target([&] {
          const TestPartial got = decode_range(head, range, query, scale);
          EXPECT_LE(distance(logits_of(got), logits_of(exact)),
                    kShareOfCodecError * distance(plain.logits, logits_of(exact)))
              << "D " << dim << " neox " << neox << " bias " << bias;
          EXPECT_LE(distance(got.output(), exact.output()), kShareOfCodecError * distance(plain.out, exact.output()))
              << "D " << dim << " neox " << neox << " bias " << bias;
        });
      }
    }
  }
}

std::vector<std::string_view> codec_names() {
  std::vector<std::string_view> names;
  for (const CodecRow& codec : codecs()) names.push_back(codec.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, CodesError, ::testing::ValuesIn(codec_names()),
                         [](const auto& parameter) { return test_name(parameter.param); });

}  // namespace
}  // namespace qevict
