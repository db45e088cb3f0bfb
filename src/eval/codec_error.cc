#include "eval/codec_error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "base/check.h"
#include "base/half.h"
#include "base/rng.h"
#include "codec/codec.h"

namespace qevict {
namespace {

constexpr int kTokenGroup = 32;  // samples are cut to whole ones

struct Reconstruction {
  std::vector<float> keys, values;  // as the sample's
};

// Of one query over all tokens, in double.
struct Attended {
  std::vector<double> scores, probabilities, output;
};

Attended attend(const AttentionSample& shape, const float* query, const std::vector<float>& keys,
                const std::vector<float>& values) {
  Attended result;
  const std::size_t n = keys.size() / static_cast<std::size_t>(shape.key_dim);
  for (std::size_t t = 0; t < n; ++t) {
    const float* key = &keys[t * static_cast<std::size_t>(shape.key_dim)];
    double dot = 0;
    for (int c = 0; c < shape.key_dim; ++c) dot += static_cast<double>(query[c]) * key[c];
    result.scores.push_back(dot);
  }
  const double top = *std::max_element(result.scores.begin(), result.scores.end());
  double sum = 0;
  for (const double score : result.scores) sum += result.probabilities.emplace_back(std::exp(score - top));
  result.output.assign(static_cast<std::size_t>(shape.value_dim), 0);
  for (std::size_t t = 0; t < n; ++t) {
    result.probabilities[t] /= sum;
    const float* value = &values[t * static_cast<std::size_t>(shape.value_dim)];
    for (int c = 0; c < shape.value_dim; ++c)
      result.output[static_cast<std::size_t>(c)] += result.probabilities[t] * value[c];
  }
  return result;
}

double mean(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value;
  return sum / static_cast<double>(x.size());
}

struct Sums {
  double score_error = 0, score_size = 0, output_error = 0, output_size = 0, cosine = 0, kl = 0;
  double n_queries = 0;

  void add(const Attended& exact, const Attended& coded) {
    const double exact_mean = mean(exact.scores), coded_mean = mean(coded.scores);
    for (std::size_t t = 0; t < exact.scores.size(); ++t) {
      const double score = exact.scores[t] - exact_mean, error = coded.scores[t] - coded_mean - score;
      score_error += error * error;
      score_size += score * score;
      // The scores' own difference, so that probabilities too small for a logarithm need none.
      const double p = exact.probabilities[t];
      if (p > 0) kl += p * (exact.scores[t] - coded.scores[t]);
    }
    kl += log_sum(coded.scores) - log_sum(exact.scores);
    double dot = 0, exact_square = 0, coded_square = 0;
    for (std::size_t c = 0; c < exact.output.size(); ++c) {
      const double x = exact.output[c], y = coded.output[c];
      output_error += (x - y) * (x - y);
      output_size += x * x;
      dot += x * y;
      exact_square += x * x;
      coded_square += y * y;
    }
    const double norms = std::sqrt(exact_square * coded_square);
    cosine += norms > 0 ? dot / norms : 1.0;
    n_queries += 1;
  }

 private:
  static double log_sum(const std::vector<double>& scores) {
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double score : scores) sum += std::exp(score - top);
    return top + std::log(sum);
  }
};

// The codec's own window, or the largest below it that n tokens hold; 0 tokens: it does not take the head size.
WindowShape window_for(const CodecRow& codec, int n, int key_dim, int value_dim) {
  WindowShape window{std::min(codec.window_tokens, n), key_dim, value_dim};
  while (window.tokens > 0 && !codec.supports(window)) --window.tokens;
  return window;
}

// index: of the sample in the set.
Reconstruction reconstruct(const CodecRow& codec, const WindowShape& window, const AttentionSet& set, std::size_t index,
                           const AttentionSample& sample) {
  const auto tokens = static_cast<std::size_t>(window.tokens), sinks = static_cast<std::size_t>(set.sink_tokens);
  const auto key_dim = static_cast<std::size_t>(window.key_dim), value_dim = static_cast<std::size_t>(window.value_dim);
  Reconstruction out{sample.keys, sample.values};
  const auto turn_coded = [&](auto turn) {
    for (std::size_t t = sinks; t * key_dim < out.keys.size(); ++t)
      turn(std::span(out.keys).subspan(t * key_dim, key_dim), sample.first_position + static_cast<double>(t));
  };
  if (!codec.keys_after_rope)
    turn_coded([&](std::span<float> key, double position) { set.rope.unrotate(key, position); });
  const std::span<float> keys = std::span(out.keys).subspan(sinks * key_dim);
  const std::span<float> values = std::span(out.values).subspan(sinks * value_dim);
  std::vector<std::byte> head, record(codec.window_bytes(window));
  const auto per_layer = static_cast<std::size_t>(set.n_kv_heads);
  if (set.calibration != nullptr)
    head = set.calibration->head_data(codec, static_cast<int>(index / per_layer), static_cast<int>(index % per_layer));
  if (head.empty()) {
    head.resize(codec.head_bytes(window));
    if (!head.empty()) codec.estimate_head(window, keys, values, head);
  }
  const std::vector<float> exact_keys(keys.begin(), keys.end()), exact_values(values.begin(), values.end());
  const std::size_t n = keys.size() / key_dim;
  for (std::size_t begin = 0; begin < n; begin += tokens) {
    const std::size_t at = std::min(begin, n - tokens);
    const auto k = std::span(exact_keys).subspan(at * key_dim, tokens * key_dim);
    const auto v = std::span(exact_values).subspan(at * value_dim, tokens * value_dim);
    TokenSide side;
    if (!sample.scores.empty()) side.scores = std::span(sample.scores).subspan(sinks + at, tokens);
    if (!sample.value_ranges.empty())
      side.value_ranges = std::span(sample.value_ranges).subspan(2 * (sinks + at), 2 * tokens);
    QEVICT_CHECK(codec.encode_knowing(window, k, v, side, head, record), "samples are finite");
    codec.decode(window, record, head, keys.subspan(at * key_dim, k.size()), values.subspan(at * value_dim, v.size()));
  }
  if (!codec.keys_after_rope)
    turn_coded([&](std::span<float> key, double position) { set.rope.rotate(key, position); });
  return out;
}

Reconstruction halves_of(const AttentionSample& sample) {
  Reconstruction out{sample.keys, sample.values};
  for (std::vector<float>* rows : {&out.keys, &out.values})
    for (float& x : *rows) x = to_float(to_half_saturated(x));
  return out;
}

int whole_groups(int n_tokens) { return n_tokens / kTokenGroup * kTokenGroup; }

AttentionSample whole_windows(AttentionSample sample, int sinks) {
  const int n = whole_groups(sample.n_tokens() - sinks);
  QEVICT_CHECK(n > 0, "a sample has at least 32 tokens beside the sinks");
  sample.keys.resize(static_cast<std::size_t>(sinks + n) * static_cast<std::size_t>(sample.key_dim));
  sample.values.resize(static_cast<std::size_t>(sinks + n) * static_cast<std::size_t>(sample.value_dim));
  return sample;
}

}  // namespace

std::vector<CodecError> codec_errors(const AttentionSet& set) {
  QEVICT_CHECK(!set.samples.empty(), "something to measure on");
  const int key_dim = set.samples.front().key_dim, value_dim = set.samples.front().value_dim;
  struct Row {
    const CodecRow* codec;  // null: f16
    WindowShape window;
    Sums sums;
  };
  std::vector<Row> rows = {{nullptr, {1, key_dim, value_dim}, {}}};
  int shortest = std::numeric_limits<int>::max();
  for (const AttentionSample& sample : set.samples)
    shortest = std::min(shortest, whole_groups(sample.n_tokens() - set.sink_tokens));
  for (const CodecRow& codec : codecs())
    if (const WindowShape window = window_for(codec, shortest, key_dim, value_dim); window.tokens > 0)
      rows.push_back({&codec, window, {}});
  for (std::size_t index = 0; index < set.samples.size(); ++index) {
    const AttentionSample sample = whole_windows(set.samples[index], set.sink_tokens);
    std::vector<Attended> exact;
    const auto query = [&](std::size_t i) { return &sample.queries[i * static_cast<std::size_t>(key_dim)]; };
    const auto n_queries = static_cast<std::size_t>(sample.n_queries());
    for (std::size_t i = 0; i < n_queries; ++i) exact.push_back(attend(sample, query(i), sample.keys, sample.values));
    for (Row& row : rows) {
      const Reconstruction coded =
          row.codec == nullptr ? halves_of(sample) : reconstruct(*row.codec, row.window, set, index, sample);
      for (std::size_t i = 0; i < n_queries; ++i)
        row.sums.add(exact[i], attend(sample, query(i), coded.keys, coded.values));
    }
  }
  std::vector<CodecError> errors;
  for (const Row& row : rows) {
    const double elements = static_cast<double>(row.window.tokens) * (key_dim + value_dim);
    const double bytes = row.codec == nullptr ? 2 * elements : static_cast<double>(row.codec->window_bytes(row.window));
    const Sums& sums = row.sums;
    errors.push_back({.codec = row.codec == nullptr ? "f16" : std::string(row.codec->name),
                      .window_tokens = row.window.tokens,
                      .bytes_per_token = bytes / row.window.tokens,
                      .bits_per_element = 8 * bytes / elements,
                      .bytes_per_head = row.codec == nullptr ? 0 : row.codec->head_bytes(row.window),
                      .scores = std::sqrt(sums.score_error / sums.score_size),
                      .outputs = std::sqrt(sums.output_error / sums.output_size),
                      .cosine = sums.cosine / sums.n_queries,
                      .kl = std::max(0.0, sums.kl / sums.n_queries)});
  }
  return errors;
}

std::vector<AttentionSet> synthetic_attention(int head_dim, int n_tokens) {
  constexpr int kSamples = 4, kQueries = 16;
  constexpr double kScoreDeviation = 2.0;
  struct Kind {
    const char* name;
    double key_width, value_width, mean;  // of outlier channels, of outlier channels, of all channels
  };
  const Kind kinds[] = {
      {"gaussian", 1, 1, 0}, {"outliers", 10, 10, 0}, {"means x10", 1, 1, 10}, {"means x100", 1, 1, 100}};
  std::vector<AttentionSet> sets;
  for (const Kind& kind : kinds) {
    Rng rng(1);
    AttentionSet set{.name = kind.name, .rope = {.frequency = {}, .magnitude = 1.0f, .neox = true}, .samples = {}};
    for (int i = 0; i < head_dim / 2; ++i)
      set.rope.frequency.push_back(static_cast<float>(std::pow(1e4, -2.0 * i / head_dim)));
    for (int s = 0; s < kSamples; ++s) {
      AttentionSample sample{.key_dim = head_dim, .value_dim = head_dim};
      std::vector<double> means;
      for (int c = 0; c < head_dim; ++c) means.push_back(rng.below(2) == 0 ? kind.mean : -kind.mean);
      for (int t = 0; t < n_tokens; ++t)
        for (int c = 0; c < head_dim; ++c) {
          const double width = c % 16 == 5 ? kind.key_width : 1.0;
          sample.keys.push_back(static_cast<float>(means[static_cast<std::size_t>(c)] + width * rng.normal()));
          sample.values.push_back(static_cast<float>((c % 32 == 9 ? kind.value_width : 1.0) * rng.normal()));
        }
      const auto dim = static_cast<std::size_t>(head_dim);
      for (std::size_t t = 0; t * dim < sample.keys.size(); ++t)
        set.rope.rotate(std::span(sample.keys).subspan(t * dim, dim), static_cast<double>(t));
      for (int q = 0; q < kQueries; ++q) {
        std::vector<float> query;
        for (int c = 0; c < head_dim; ++c) query.push_back(static_cast<float>(rng.normal()));
        const std::vector<double> scores = attend(sample, query.data(), sample.keys, sample.values).scores;
        const double middle = mean(scores);
        double square = 0;
        for (const double score : scores) square += (score - middle) * (score - middle);
        const double scale = kScoreDeviation / std::sqrt(square / static_cast<double>(scores.size()));
        for (const float x : query) sample.queries.push_back(static_cast<float>(x * scale));
      }
      set.samples.push_back(std::move(sample));
    }
    sets.push_back(std::move(set));
  }
  return sets;
}

}  // namespace qevict
