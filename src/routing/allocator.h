// Allocators: who gets how many of the history bytes. One row per allocator in kAllocators (allocator.cc).
//
// `equal` gives every head the same. The others let heads compete: a head whose windows draw more attention than
// another's gets more bytes (the idea of AdaKV, arXiv 2407.11550), within its layer or over the whole model.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "routing/spending.h"

namespace qevict {

// Heads that share their bytes.
enum class Scope { head, layer, model };

struct AllocatorRow {
  std::string_view name;     // as users type it
  std::string_view summary;  // one line
  Scope scope = Scope::head;
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

}  // namespace qevict
