// Rankings score windows; the router keeps the best. One file per ranking, one row each in kRankings (ranking.cc).
//
// Sinks and the recent region are the cache's business: a ranking cannot evict them and needs no magic scores. Rankings
// that follow attention say how their accumulators change (ScoreRule); the kernels' by-products do the rest. Others
// override score().
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/half.h"
#include "cache/routing_plan.h"
#include "cache/zones.h"

namespace qevict {

// How the accumulator S(i) of a token or window follows the attention rows ā_t(i) (qevict.md section 3):
// in prefill S = sum over rows t of weight(t) * ā_t^power, per decode step S <- decay * S + ā^power.
struct ScoreRule {
  bool kept = true;       // false: no accumulators exist at all
  bool attention = true;  // false: they hold what token_scores() said when the token's window was routed
  float decay = 1;        // γ, per token
  int power = 1;          // above 1: an accumulator for each token, whose roots are summed
  bool expected = false;  // a prompt is scored by the attention its queries let expect (expected.h)
  int observed_rows = 0;  // of a prefill, the last rows, beside which others count `unobserved` times; 0 = all
  float unobserved = 0;
  bool probes = false;  // of a prefill, the rows of ZipCache's probes; sums are divided by the probes that see a token
  // Weight of row `row` of a prefill of n_rows.
  float row_weight(int row, int n_rows) const;
  bool uniform() const { return decay == 1 && observed_rows == 0 && !probes; }  // every weight is 1
  // Weights of all rows.
  std::vector<float> row_weights(int n_rows) const;
};

// Tokens of one head whose windows are about to be ranked for the first time.
struct TokenBatch {
  std::span<const Half> keys;    // [n][key_dim], after RoPE
  std::span<const Half> values;  // [n][value_dim]
  int key_dim = 0;
  int value_dim = 0;
  std::int64_t first_position = 0;
  int n = 0;
  int layer = 0;
  int kv_head = 0;
};

// What of one KV head a ranking looks at anew at every routing: the n tokens that may go, held windows' and
// challengers' in ascending position.
struct Observation {
  int n = 0;
  int key_dim = 0;
  std::vector<float> keys;  // [n ...][key_dim], after RoPE, then those of all others held; if the ranking asks for keys
  int rows = 0;             // queries looked back on, oldest first
  int group = 0;            // query heads of the KV head
  // [rows][group][n] probabilities of these queries, each a softmax over all that it sees.
  std::vector<float> attention;

  std::span<const float> row(int t, int g) const {
    const auto width = static_cast<std::size_t>(n);
    return {attention.data() + static_cast<std::size_t>(t * group + g) * width, width};
  }
};

struct RankingContext {
  Zones zones;
  std::int64_t n_tokens = 0;  // seen so far
};

struct RankingRow {
  std::string_view name;     // as users type it
  std::string_view summary;  // one line
  ScoreRule rule;
  // Turns candidates' accumulators into scores, in place; null: the accumulator is the score.
  void (*score)(std::span<Candidate> candidates, const RankingContext& context) = nullptr;
  // Scores of tokens, [n], that add up to their windows'; of rankings that follow no attention.
  void (*token_scores)(const TokenBatch& tokens, std::span<float> scores) = nullptr;
  // Scores of tokens, [n], of rankings that look at the head anew; their rule keeps no accumulators.
  void (*observe)(const Observation& head, std::span<float> scores) = nullptr;
  int query_rows = 0;  // queries that observe() looks back on; the cache keeps them, and counts their bytes
  bool keys = false;   // observe() looks at keys
  // Of each of a layer's heads the tokens that must stay, [n] of 0 or 1, at most `most` of them.
  std::vector<std::vector<char>> (*force)(std::span<const Observation* const> heads, int most) = nullptr;
};

std::span<const RankingRow> rankings();
// Null if there is none of that name.
const RankingRow* find_ranking(std::string_view name);

}  // namespace qevict
