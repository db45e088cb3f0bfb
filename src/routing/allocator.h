// Allocators: who gets how many of the history bytes. One row per allocator in kAllocators (allocator.cc).
//
// `equal` gives every head the same. The others let heads compete: a head whose windows draw more attention than
// another's gets more bytes (the idea of AdaKV, arXiv 2407.11550), within its layer or over the whole model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "routing/spending.h"

namespace qevict {

// Heads that share their bytes.
enum class Scope { head, layer, model };

// How they do.
enum class Sharing {
  bids,     // allocate()
  mixed,    // mix()
  one_set,  // equally, and all keep the same windows: those of the best mean score
  slope,    // pyramid_tokens(): the layer alone decides
};

struct AllocatorRow {
  std::string_view name;     // as users type it
  std::string_view summary;  // one line
  Scope scope = Scope::head;
  Sharing sharing = Sharing::bids;

  // Heads compete, so that a floor keeps each alive.
  bool takes_floor() const { return scope != Scope::head && (sharing == Sharing::bids || sharing == Sharing::mixed); }
};

std::span<const AllocatorRow> allocators();
// Null if there is none of that name.
const AllocatorRow* find_allocator(std::string_view name);

// What becomes of bytes that nothing can be bought with.
enum class Leftover { shared, withheld };

// History bytes of each head, `total_bytes` in all. Every head is first given its own best windows up to floor_bytes;
// what is left goes to the best gains per byte of all heads (buys() of spending.h), and what nothing can be bought with
// is dealt out equally, so that windows to come find room. Pure; ties go to the earlier head, then to the smaller
// window.
std::vector<std::size_t> allocate(std::span<const std::vector<Candidate>* const> heads, const SpendingRule& rule,
                                  std::size_t total_bytes, std::size_t floor_bytes,
                                  Leftover leftover = Leftover::shared);

// AdaKV's first form (baselines.md 4.4, `mix`): a head's windows are (1 - floor) of those that bids without a floor
// give it, plus floor of an equal share rounded down, rounded to whole windows; never more than total_bytes in all.
// equal_bytes: an equal share of one head. Every candidate costs price_bytes.
std::vector<std::size_t> mix(std::span<const std::vector<Candidate>* const> heads, const SpendingRule& rule,
                             std::size_t total_bytes, std::size_t equal_bytes, double floor, std::size_t price_bytes);

// PyramidKV (arXiv 2406.02069; baselines.md section 5): tokens of each of n_layers, falling linearly around `base`,
// newest `window` tokens included, of n tokens seen. All equal to base where its rule leaves no slope.
std::vector<std::int64_t> pyramid_tokens(int n_layers, std::int64_t n, double base, int window);

// Every head's candidates take the mean score and weight of the heads, and are forced if one head forces them.
// REQUIRES: the same windows in all.
void share_scores(std::span<std::vector<Candidate>* const> heads);

}  // namespace qevict
