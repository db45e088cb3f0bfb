#include "engine/observe.h"

#include <algorithm>
#include <vector>

namespace qevict {
namespace {

// Everything a head holds, with `tokens` in place of its tail, and the rank of its tokens: their place among those of
// all candidates.
class HeldTokens {
 public:
  HeldTokens(const HeadCache& head, const Zones& zones, const TokenView& tokens, std::span<const Candidate> candidates)
      : view_(head.view()), window_(zones.window), sinks_(head.sink_tokens()) {
    in_tiers_ = sinks_ + head.full_tokens();
    head.append_runs(0, in_tiers_, runs_);
    runs_.push_back(
        {.keys = tokens.keys.data(), .values = tokens.values.data(), .n_tokens = tokens.n, .first_token = in_tiers_});
    head.append_codes(0, head.quantized_windows(), codes_);
    for (const Candidate& candidate : candidates) {
      if (candidate.tier == Tier::full) full_rank_.push_back(n_ranked_);
      if (candidate.tier == Tier::quantized) code_rank_.push_back(n_ranked_);
      if (candidate.tier == Tier::none && challengers_ == 0) {
        first_challenger_ = in_tiers_ + static_cast<int>(zones.first_position(static_cast<int>(candidate.window)) -
                                                         tokens.first_position);
      }
      challengers_ += candidate.tier == Tier::none ? window_ : 0;
      n_ranked_ += window_;
    }
    view_.f16 = runs_;
    view_.codes = codes_;
  }
  HeldTokens(const HeldTokens&) = delete;
  HeldTokens& operator=(const HeldTokens&) = delete;

  const HeadView& view() const { return view_; }
  int n_ranked() const { return n_ranked_; }
  int tier_tokens() const { return in_tiers_; }  // sinks and windows at full precision
  // -1: not ranked.
  int rank_of_f16(int token) const {
    if (token < sinks_) return -1;
    if (token < in_tiers_) {
      return full_rank_[static_cast<std::size_t>((token - sinks_) / window_)] + (token - sinks_) % window_;
    }
    const int at = token - first_challenger_;
    return at >= 0 && at < challengers_ ? n_ranked_ - challengers_ + at : -1;
  }
  int rank_of_code(int token) const { return code_rank_[static_cast<std::size_t>(token / window_)] + token % window_; }

 private:
  HeadView view_;
  int window_;
  int sinks_;
  int in_tiers_ = 0;
  std::vector<F16Run> runs_;
  std::vector<CodeWindow> codes_;
  std::vector<int> full_rank_, code_rank_;  // of the windows' first tokens
  int first_challenger_ = 0;                // in the order of f16 tokens
  int challengers_ = 0;                     // tokens
  int n_ranked_ = 0;
};

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
  const HeldTokens held(head, zones, tokens, candidates);
  Observation result{.n = held.n_ranked(),
                     .key_dim = shape.key_dim,
                     .keys = {},
                     .rows = ranking.query_rows > 0 ? head.query_rows() : 0,
                     .group = shape.group,
                     .attention = {}};
  const std::vector<float> keys = all_keys(held.view(), head_shape);
  const int n_codes = held.view().code_tokens(), n_f16 = held.view().f16_tokens();
  const auto n_held = static_cast<std::size_t>(n_codes + n_f16);
  std::vector<int> ranks;
  for (int token = 0; token < n_codes; ++token) ranks.push_back(held.rank_of_code(token));
  for (int token = 0; token < n_f16; ++token) ranks.push_back(held.rank_of_f16(token));
  if (ranking.keys) result.keys = ranked_first(keys, ranks, result.n, shape.key_dim);
  if (result.rows == 0) return result;

  std::vector<float> queries;
  std::vector<int> seen;
  for (int t = 0; t < result.rows; ++t) {
    for (const Half q : head.query(t)) queries.push_back(to_float(q));
    // The newest query is the last token's: an older one does not see what came after it. Windows in tiers it does.
    const int f16_seen = std::max(held.tier_tokens(), n_f16 - (result.rows - 1 - t));
    seen.insert(seen.end(), static_cast<std::size_t>(result.group), std::max(1, n_codes + f16_seen));
  }
  std::vector<float> probabilities(seen.size() * n_held);
  attend_rows(shape.key_dim, keys, queries, seen, scale, probabilities);
  result.attention.resize(seen.size() * static_cast<std::size_t>(result.n));
  for (std::size_t row = 0; row < seen.size(); ++row) {
    for (std::size_t i = 0; i < n_held; ++i) {
      if (ranks[i] >= 0) {
        result.attention[row * static_cast<std::size_t>(result.n) + static_cast<std::size_t>(ranks[i])] =
            probabilities[row * n_held + i];
      }
    }
  }
  return result;
}

}  // namespace qevict
