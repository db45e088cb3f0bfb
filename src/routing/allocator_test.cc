#include "routing/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/rng.h"

namespace qevict {
namespace {

std::vector<Candidate> head_of(const std::vector<float>& scores, Tier tier = Tier::none) {
  std::vector<Candidate> result;
  for (const float score : scores) result.push_back({static_cast<std::int64_t>(result.size()), tier, score});
  return result;
}

std::vector<std::size_t> shares(const std::vector<std::vector<Candidate>>& heads, const SpendingRule& rule,
                                std::size_t total, std::size_t floor, Leftover leftover = Leftover::shared) {
  std::vector<const std::vector<Candidate>*> pointers;
  for (const auto& head : heads) pointers.push_back(&head);
  return allocate(pointers, rule, total, floor, leftover);
}

constexpr SpendingRule kFullOnly{.costs = {.full_slot_bytes = 10, .quantized_slot_bytes = 0}};

// baselines.md T-ADA, pooled scores of fixture A: alpha = .2 of B = 5 protects one prefix entry of each head, and the
// layer's best six are head 0's {0, 1, 3, 4} and head 1's {0, 1}.
TEST(Allocator, AdaKvExample) {
  const std::vector<std::vector<Candidate>> heads = {
      head_of({.119167f, .1375f, .079167f, .105833f, .108333f, .058333f}),
      head_of({.128333f, .144167f, .06f, .06f, .0725f, .048333f})};
  EXPECT_EQ(shares(heads, kFullOnly, 60, 10), (std::vector<std::size_t>{40, 20}));
}

TEST(Allocator, TheFloorKeepsAHeadAlive) {
  const std::vector<std::vector<Candidate>> heads = {head_of({9, 8, 7, 6}), head_of({.3f, .2f, .1f, .1f})};
  EXPECT_EQ(shares(heads, kFullOnly, 40, 0), (std::vector<std::size_t>{40, 0}));
  EXPECT_EQ(shares(heads, kFullOnly, 40, 10), (std::vector<std::size_t>{30, 10}));
  EXPECT_EQ(shares(heads, kFullOnly, 40, 20), (std::vector<std::size_t>{20, 20}));
}

TEST(Allocator, WhatBuysNothingIsSharedOrWithheld) {
  const std::vector<std::vector<Candidate>> heads = {head_of({1}), head_of({2, 3})};
  EXPECT_EQ(shares(heads, kFullOnly, 71, 0), (std::vector<std::size_t>{31, 40}));
  EXPECT_EQ(shares(heads, kFullOnly, 71, 0, Leftover::withheld), (std::vector<std::size_t>{10, 20}));
}

// Codes of a weak window come before the precision of a strong one exactly when they gain more for each byte.
TEST(Allocator, ByGainWeighsCoverageAgainstPrecision) {
  const SpendingRule rule{.costs = {.full_slot_bytes = 500, .quantized_slot_bytes = 100}, .by_gain = true, .loss = .2};
  const std::vector<std::vector<Candidate>> heads = {head_of({100}), head_of({1, 1, 1, 1})};
  // codes of 100: .8/byte; its precision: 20/400 = .05; codes of 1: .008.
  EXPECT_EQ(shares(heads, rule, 600, 0, Leftover::withheld), (std::vector<std::size_t>{500, 100}));
  EXPECT_EQ(shares({head_of({100}, Tier::quantized), heads[1]}, rule, 600, 0, Leftover::withheld),
            (std::vector<std::size_t>{100, 400}));
}

TEST(Allocator, SpendsAllAndNoMore) {
  Rng rng(7);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::vector<Candidate>> heads(1 + rng.below(6));
    for (auto& head : heads) {
      std::vector<float> scores(rng.below(40));
      for (float& score : scores) score = static_cast<float>(rng.below(50));
      head = head_of(scores);
    }
    const std::size_t total = rng.below(5000);
    const std::size_t floor = rng.below(1000) * total / 1000 / heads.size();
    const SpendingRule rule{.costs = {.full_slot_bytes = 70, .quantized_slot_bytes = 13},
                            .by_gain = trial % 2 == 0,
                            .quantized_per_mille = 700,
                            .loss = .2};
    const std::vector<std::size_t> bytes = shares(heads, rule, total, floor);
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}), total);
  }
}

// Layer after layer, each time with the whole budget for those so far and only what was kept before: the outcome is
// that of all layers at once (qevict.md section 5).
TEST(Allocator, StreamingOverLayersIsExact) {
  Rng rng(11);
  for (int trial = 0; trial < 50; ++trial) {
    constexpr std::size_t kHeads = 6, kWindows = 30, kSlots = 40;
    std::vector<std::vector<Candidate>> all(kHeads);
    for (auto& head : all) {
      std::vector<float> scores(kWindows);
      for (float& score : scores) score = static_cast<float>(rng.uniform());
      head = head_of(scores);
    }
    std::vector<std::vector<Candidate>> kept;
    for (const auto& head : all) {
      kept.push_back(head);
      const std::vector<std::size_t> bytes = shares(kept, kFullOnly, 10 * kSlots, 20, Leftover::withheld);
      for (std::size_t h = 0; h < kept.size(); ++h) {
        std::ranges::sort(kept[h], [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
        kept[h].resize(std::min(kept[h].size(), bytes[h] / 10));
      }
    }
    const std::vector<std::size_t> at_once = shares(all, kFullOnly, 10 * kSlots, 20);
    for (std::size_t h = 0; h < kHeads; ++h) EXPECT_EQ(10 * kept[h].size(), at_once[h]) << "head " << h;
  }
}

// baselines.md T-ADA, form `mix`: counts 4 and 2, floor(.2 * 3) = 0, capacities 3.2 and 1.6 round to 3 and 2, so that
// one of the six slots is lost.
TEST(Allocator, AdaKvsFirstFormExample) {
  const std::vector<std::vector<Candidate>> heads = {
      head_of({.119167f, .1375f, .079167f, .105833f, .108333f, .058333f}),
      head_of({.128333f, .144167f, .06f, .06f, .0725f, .048333f})};
  const std::vector<const std::vector<Candidate>*> pointers = {&heads[0], &heads[1]};
  EXPECT_EQ(mix(pointers, kFullOnly, 60, 30, .2, 10), (std::vector<std::size_t>{30, 20}));
}

TEST(Allocator, MixedSharesNeverExceedTheTotal) {
  Rng rng(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::vector<Candidate>> heads(1 + rng.below(8));
    std::vector<const std::vector<Candidate>*> pointers;
    for (auto& head : heads) {
      std::vector<float> scores(30);
      for (float& score : scores) score = static_cast<float>(rng.uniform());
      head = head_of(scores);
      pointers.push_back(&head);
    }
    const std::size_t equal = 10 * rng.below(25), total = equal * heads.size();
    const std::vector<std::size_t> bytes = mix(pointers, kFullOnly, total, equal, rng.uniform(), 10);
    EXPECT_LE(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}), total);
  }
}

// baselines.md T-PYR.
TEST(Allocator, PyramidExample) {
  EXPECT_EQ(pyramid_tokens(4, 16384, 16384 * .2, 64), (std::vector<std::int64_t>{6390, 4314, 2239, 164}));
  EXPECT_EQ(pyramid_tokens(4, 1000, 200, 64), (std::vector<std::int64_t>{200, 200, 200, 200}));
}

TEST(Allocator, PyramidsNeverExceedTheirBase) {
  for (int base = 1; base < 2000; base += 7) {
    for (const int layers : {1, 2, 30}) {
      std::int64_t sum = 0;
      for (const std::int64_t tokens : pyramid_tokens(layers, 7000, base, 32)) sum += tokens;
      EXPECT_LE(sum, std::int64_t{base} * layers);
    }
  }
}

// baselines.md T-CH: chunk means .3 and .35 and .5 of scores summed over the heads.
TEST(Allocator, OneSetGoesByTheMeanOfTheHeads) {
  std::vector<Candidate> first = head_of({.4f, .2f, .6f}), second = head_of({.2f, .5f, .4f});
  const std::vector<std::vector<Candidate>*> heads = {&first, &second};
  share_scores(heads);
  for (const auto& head : {first, second}) {
    EXPECT_FLOAT_EQ(head[0].score, .3f);
    EXPECT_FLOAT_EQ(head[1].score, .35f);
    EXPECT_FLOAT_EQ(head[2].score, .5f);
  }
}

}  // namespace
}  // namespace qevict
