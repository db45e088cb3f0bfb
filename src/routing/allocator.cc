#include "routing/allocator.h"

#include <algorithm>

namespace qevict {
namespace {

constexpr AllocatorRow kAllocators[] = {
    {.name = "equal", .summary = "every head the same bytes (the paper's)", .scope = Scope::head},
    {.name = "head-adaptive", .summary = "the heads of a layer compete for its bytes", .scope = Scope::layer},
    {.name = "layer-adaptive", .summary = "all heads of all layers compete", .scope = Scope::model},
};

struct Bid {
  Purchase purchase;
  std::size_t head;
};

}  // namespace

std::span<const AllocatorRow> allocators() { return kAllocators; }

const AllocatorRow* find_allocator(std::string_view name) {
  const auto row = std::find_if(std::begin(kAllocators), std::end(kAllocators),
                                [&](const AllocatorRow& r) { return r.name == name; });
  return row == std::end(kAllocators) ? nullptr : row;
}

std::vector<std::size_t> allocate(std::span<const std::vector<Candidate>* const> heads, const SpendingRule& rule,
                                  std::size_t total_bytes, std::size_t floor_bytes, Leftover leftover) {
  std::vector<std::size_t> bytes(heads.size());
  std::size_t left = total_bytes;
  std::vector<Bid> bids;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    std::vector<Purchase> purchases = buys(*heads[h], rule);
    std::stable_sort(purchases.begin(), purchases.end(),
                     [](const Purchase& a, const Purchase& b) { return a.gain_per_byte > b.gain_per_byte; });
    for (const Purchase& purchase : purchases) {
      if (bytes[h] + purchase.bytes <= floor_bytes) {
        bytes[h] += purchase.bytes;
      } else {
        bids.push_back({purchase, h});
      }
    }
    left -= bytes[h];
  }
  std::stable_sort(bids.begin(), bids.end(),
                   [](const Bid& a, const Bid& b) { return a.purchase.gain_per_byte > b.purchase.gain_per_byte; });
  for (const Bid& bid : bids) {
    if (bid.purchase.bytes > left) break;
    bytes[bid.head] += bid.purchase.bytes;
    left -= bid.purchase.bytes;
  }
  for (std::size_t h = 0; leftover == Leftover::shared && h < heads.size(); ++h)
    bytes[h] += left / heads.size() + (h < left % heads.size());
  return bytes;
}

}  // namespace qevict
