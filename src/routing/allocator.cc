#include "routing/allocator.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace qevict {
namespace {

constexpr AllocatorRow kAllocators[] = {
    {.name = "equal", .summary = "every head the same bytes (the paper's)", .scope = Scope::head},
    {.name = "head-adaptive", .summary = "the heads of a layer compete for its bytes", .scope = Scope::layer},
    {.name = "layer-adaptive", .summary = "all heads of all layers compete", .scope = Scope::model},
    {.name = "head-mixed",
     .summary = "half way: competition within a layer, mixed with equal shares (AdaKV's first form)",
     .scope = Scope::layer,
     .sharing = Sharing::mixed},
    {.name = "one-set",
     .summary = "the heads of a layer keep the same windows, of the best mean score",
     .scope = Scope::layer,
     .sharing = Sharing::one_set},
    {.name = "pyramid",
     .summary = "more for early layers than for late ones (PyramidKV)",
     .scope = Scope::model,
     .sharing = Sharing::slope},
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

std::vector<std::size_t> mix(std::span<const std::vector<Candidate>* const> heads, const SpendingRule& rule,
                             std::size_t total_bytes, std::size_t equal_bytes, double floor, std::size_t price_bytes) {
  std::vector<std::size_t> bytes = allocate(heads, rule, total_bytes, 0, Leftover::withheld);
  const double least = std::floor(floor * static_cast<double>(equal_bytes / price_bytes));
  std::size_t left = total_bytes;
  for (std::size_t& of_head : bytes) {
    const double windows = std::nearbyint(static_cast<double>(of_head / price_bytes) * (1 - floor) + least);
    of_head = std::min(static_cast<std::size_t>(windows), left / price_bytes) * price_bytes;
    left -= of_head;
  }
  return bytes;
}

std::vector<std::int64_t> pyramid_tokens(int n_layers, std::int64_t n, double base, int window) {
  double least = base / 20, most = 2 * base - least;
  const auto others = static_cast<double>(n - window);
  if (most >= others) {
    most = others;
    least = 2 * base - most;
  }
  const bool slopes = n_layers > 1 && static_cast<double>(n) >= most && most >= least && least >= window;
  std::vector<std::int64_t> tokens;
  for (int layer = 0; layer < n_layers; ++layer) {
    const double of_layer = slopes ? most - layer * (most - least) / (n_layers - 1) : base;
    tokens.push_back(static_cast<std::int64_t>(slopes ? std::nearbyint(of_layer) : std::floor(base)));
  }
  // Rounding must not buy more than there is.
  std::int64_t over = -static_cast<std::int64_t>(std::floor(base * n_layers));
  for (const std::int64_t of_layer : tokens) over += of_layer;
  for (std::size_t layer = 0; layer < tokens.size() && over > 0; ++layer, --over) --tokens[layer];
  return tokens;
}

void share_scores(std::span<std::vector<Candidate>* const> heads) {
  for (std::size_t i = 0; !heads.empty() && i < heads.front()->size(); ++i) {
    float sum = 0, weights = 0;
    bool forced = false;
    for (const std::vector<Candidate>* head : heads) {
      QEVICT_CHECK(head->size() == heads.front()->size() && (*head)[i].window == (*heads.front())[i].window,
                   "heads of one set hold the same windows");
      sum += (*head)[i].score;
      weights += (*head)[i].weight;
      forced = forced || (*head)[i].forced;
    }
    for (std::vector<Candidate>* head : heads) {
      (*head)[i].score = sum / static_cast<float>(heads.size());
      (*head)[i].weight = weights / static_cast<float>(heads.size());
      (*head)[i].forced = forced;
    }
  }
}

}  // namespace qevict
