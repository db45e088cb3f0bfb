#include "engine/observe.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace qevict {
namespace {

// Everything held as f32 keys after RoPE: codes first, then f16 tokens in the order of attention, so that what an older
// query does not see comes last.
std::vector<float> all_keys(const HeadView& view, const HeadShape& shape) {
  const auto dim = static_cast<std::size_t>(shape.key_dim);
  std::vector<float> keys(static_cast<std::size_t>(view.code_tokens() + view.f16_tokens()) * dim);
  std::vector<float> values(static_cast<std::size_t>(view.window.tokens * shape.value_dim));
  auto at = keys.begin();
  for (const CodeWindow& code : view.codes) {
    const std::span<float> window(at, at + view.window.tokens * shape.key_dim);
    view.codec->decode(view.window, {code.record, view.codec->window_bytes(view.window)}, view.head_data, window,
                       values);
    for (int i = 0; i < view.window.tokens && !view.codec->keys_after_rope; ++i)
      view.rope->rotate(window.subspan(static_cast<std::size_t>(i) * dim, dim), code.position + i);
    at += view.window.tokens * shape.key_dim;
  }
  for (const F16Run& run : view.f16) {
    const std::ptrdiff_t count = std::ptrdiff_t{run.n_tokens} * shape.key_dim;
    at = std::transform(run.keys, run.keys + count, at, [](Half k) { return to_float(k); });
  }
  return keys;
}

// Place of every token in all_keys()'s order among those of all candidates; -1: it is not ranked.
std::vector<int> ranks_of(const HeadCache& head, const HeadView& view, const Zones& zones, const TokenView& tokens,
                          std::span<const Candidate> candidates) {
  std::vector<int> ranks(static_cast<std::size_t>(view.code_tokens() + view.f16_tokens()), -1);
  int code = 0, full = view.code_tokens() + head.sink_tokens(), rank = 0;
  const int tail = full + head.full_tokens();
  for (const Candidate& candidate : candidates) {
    const std::int64_t first = zones.first_position(static_cast<int>(candidate.window)) - tokens.first_position;
    int at = tail + static_cast<int>(first);  // a challenger
    if (candidate.tier == Tier::quantized) at = std::exchange(code, code + zones.window);
    if (candidate.tier == Tier::full) at = std::exchange(full, full + zones.window);
    for (int i = 0; i < zones.window; ++i) ranks[static_cast<std::size_t>(at + i)] = rank++;
  }
  return ranks;
}

// Tokens that stand side by side in both orders.
struct RankRun {
  std::size_t at, rank, n;
};
std::vector<RankRun> runs_of(std::span<const int> ranks) {
  std::vector<RankRun> runs;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0) continue;
    const auto rank = static_cast<std::size_t>(ranks[i]);
    if (!runs.empty() && runs.back().at + runs.back().n == i && runs.back().rank + runs.back().n == rank) {
      ++runs.back().n;
    } else {
      runs.push_back({i, rank, 1});
    }
  }
  return runs;
}

// Keys of ranked tokens in their order, then those of the others.
std::vector<float> ranked_first(std::span<const float> keys, std::span<const int> ranks, int n_ranked, int key_dim) {
  const auto dim = static_cast<std::size_t>(key_dim);
  std::vector<float> result(keys.size());
  auto other = static_cast<std::size_t>(n_ranked);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t to = ranks[i] >= 0 ? static_cast<std::size_t>(ranks[i]) : other++;
    std::ranges::copy(keys.subspan(i * dim, dim), result.begin() + static_cast<std::ptrdiff_t>(to * dim));
  }
  return result;
}

}  // namespace

Observation observe(const RankingRow& ranking, const HeadCache& head, const CacheShape& shape, const Zones& zones,
                    const TokenView& tokens, std::span<const Candidate> candidates, float scale) {
  const HeadShape head_shape{.key_dim = shape.key_dim, .value_dim = shape.value_dim, .group = shape.group};
  const int in_tiers = head.sink_tokens() + head.full_tokens();
  std::vector<F16Run> runs;
  std::vector<CodeWindow> codes;
  head.append_runs(0, in_tiers, runs);
  runs.push_back(
      {.keys = tokens.keys.data(), .values = tokens.values.data(), .n_tokens = tokens.n, .first_token = in_tiers});
  head.append_codes(0, head.quantized_windows(), codes);
  HeadView view = head.view();
  view.f16 = runs;
  view.codes = codes;
  Observation result{.n = static_cast<int>(candidates.size()) * zones.window,
                     .key_dim = shape.key_dim,
                     .keys = {},
                     .rows = ranking.query_rows > 0 ? head.query_rows() : 0,
                     .group = shape.group,
                     .attention = {}};
  const std::vector<float> keys = all_keys(view, head_shape);
  const std::vector<int> ranks = ranks_of(head, view, zones, tokens, candidates);
  const int n_codes = view.code_tokens(), n_f16 = view.f16_tokens();
  const std::size_t n_held = ranks.size();
  if (ranking.keys) result.keys = ranked_first(keys, ranks, result.n, shape.key_dim);
  if (result.rows == 0) return result;

  std::vector<float> queries;
  std::vector<int> seen;
  for (int t = 0; t < result.rows; ++t) {
    for (const Half q : head.query(t)) queries.push_back(to_float(q));
    // The newest query is the last token's: an older one does not see what came after it. Windows in tiers it does.
    const int f16_seen = std::max(in_tiers, n_f16 - (result.rows - 1 - t));
    seen.insert(seen.end(), static_cast<std::size_t>(result.group), std::max(1, n_codes + f16_seen));
  }
  std::vector<float> probabilities(seen.size() * n_held);
  attend_rows(shape.key_dim, keys, queries, seen, scale, probabilities);
  result.attention.resize(seen.size() * static_cast<std::size_t>(result.n));
  const std::vector<RankRun> ranked = runs_of(ranks);
  for (std::size_t row = 0; row < seen.size(); ++row) {
    const float* from = probabilities.data() + row * n_held;
    float* to = result.attention.data() + row * static_cast<std::size_t>(result.n);
    for (const RankRun& run : ranked) std::copy_n(from + run.at, run.n, to + run.rank);
  }
  return result;
}

}  // namespace qevict
