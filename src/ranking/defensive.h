// DefensiveKV (arXiv 2510.13334): the worst case over queries rather than their mean, with the head's mean as a floor,
// and a set of tokens that must stay (baselines.md 4.6, steps 1 to 3 and 5). The value factor of step 4 is the weight
// `projected-share`.
#pragma once

#include "ranking/ranking.h"

namespace qevict {

inline constexpr int kDefensiveRows = 32;   // w
inline constexpr int kDefensiveKernel = 5;  // s
inline constexpr double kDefensiveMass = 0.9;

// Each row pooled over `kernel` neighbours and rescaled to its mass, then the largest over rows and query heads, then
// no less than the mean of these. scores: [n].
void defensive_scores(const Observation& head, std::span<float> scores, int kernel = kDefensiveKernel);

// What of attention the kept newest tokens cover already, which forcing subtracts from kDefensiveMass.
enum class Beta {
  code,    // as the released program has it: the mass on the last w of the tokens that may go
  window,  // as the paper means it: the mass on the observation window itself
};
// Of each head of a layer the fewest tokens that, best mean attention first, reach a mass of .9 - beta, less the one
// that reaches it; beta: mean over all heads, rows and query heads. At most `most`.
std::vector<std::vector<char>> defensive_forced(std::span<const Observation* const> heads, int most, Beta beta);

inline constexpr RankingRow kDefensive = {
    .name = "defensive",
    .summary = "largest attention of the last 32 tokens, averaged over 5 neighbours",
    .rule = {.kept = false},
    .observe = [](const Observation& head, std::span<float> scores) { defensive_scores(head, scores); },
    .query_rows = kDefensiveRows,
    .force = [](std::span<const Observation* const> heads,
                int most) { return defensive_forced(heads, most, Beta::code); }};
inline constexpr RankingRow kDefensiveWindow = {
    .name = "defensive-window",
    .summary = "the same, with the paper's rather than its program's share of forced tokens",
    .rule = {.kept = false},
    .observe = [](const Observation& head, std::span<float> scores) { defensive_scores(head, scores); },
    .query_rows = kDefensiveRows,
    .force = [](std::span<const Observation* const> heads,
                int most) { return defensive_forced(heads, most, Beta::window); }};

}  // namespace qevict
