#include "diag/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace qevict {
namespace {

template <class T>
T at_or(std::span<const T> values, std::size_t index, T otherwise) {
  return index < values.size() ? values[index] : otherwise;
}

void count(std::vector<std::int64_t>& histogram, std::size_t length, std::int64_t n) {
  if (histogram.size() <= length) histogram.resize(length + 1);
  histogram[length] += n;
}

std::int64_t count_from(const std::vector<std::int64_t>& histogram, int length) {
  const auto begin = std::min(static_cast<std::size_t>(length), histogram.size());
  return std::accumulate(histogram.begin() + static_cast<std::ptrdiff_t>(begin), histogram.end(), std::int64_t{0});
}

}  // namespace

void PooledRatio::add(const PooledRatio& other) {
  numerator += other.numerator;
  denominator += other.denominator;
}

std::optional<double> PooledRatio::value() const {
  if (denominator == 0) return std::nullopt;
  return numerator / denominator;
}

void PlainMean::add(std::optional<double> value) {
  if (!value) return;
  sum += *value;
  ++count;
}

std::optional<double> PlainMean::value() const {
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

std::optional<double> selection_churn(std::span<const Tier> before, std::span<const Tier> after) {
  int both = 0, either = 0;
  for (std::size_t w = 0; w < std::max(before.size(), after.size()); ++w) {
    const bool was = at_or(before, w, Tier::none) == Tier::full, is = at_or(after, w, Tier::none) == Tier::full;
    both += was && is;
    either += was || is;
  }
  if (either == 0) return std::nullopt;
  return 1.0 - static_cast<double>(both) / either;
}

void Migrations::add(Tier from, Tier to) {
  if (from == to) return;
  const auto pick = [to](std::int64_t* full, std::int64_t* quantized, std::int64_t* evicted) {
    return to == Tier::full ? full : to == Tier::quantized ? quantized : to == Tier::evicted ? evicted : nullptr;
  };
  std::int64_t* counter = nullptr;
  if (from == Tier::none) counter = pick(&challenger_full, &challenger_quantized, &challenger_evicted);
  if (from == Tier::full) counter = pick(nullptr, &full_quantized, &full_evicted);
  if (from == Tier::quantized) counter = pick(&quantized_full, nullptr, &quantized_evicted);
  QEVICT_CHECK(counter != nullptr, "eviction is for good, and a routed window stays routed");
  ++*counter;
}

void Migrations::add(std::span<const Tier> before, std::span<const Tier> after) {
  for (std::size_t w = 0; w < after.size(); ++w) add(at_or(before, w, Tier::none), after[w]);
}

void Migrations::add(const Migrations& other) {
  challenger_full += other.challenger_full;
  challenger_quantized += other.challenger_quantized;
  challenger_evicted += other.challenger_evicted;
  full_quantized += other.full_quantized;
  quantized_full += other.quantized_full;
  full_evicted += other.full_evicted;
  quantized_evicted += other.quantized_evicted;
}

std::vector<Activity> policy_activity(std::span<const Tier> tiers) {
  std::vector<Activity> windows(tiers.size());
  for (std::size_t w = 0; w < tiers.size(); ++w)
    windows[w] = tiers[w] == Tier::none   ? Activity::absent
                 : tiers[w] == Tier::full ? Activity::active
                                          : Activity::inactive;
  return windows;
}

std::vector<Activity> oracle_activity(std::span<const Tier> tiers, std::span<const float> reference_scores) {
  QEVICT_CHECK(reference_scores.size() == tiers.size(), "a reference score for every window");
  std::vector<Activity> windows(tiers.size(), Activity::absent);
  std::vector<std::size_t> ranked;
  std::size_t n_full = 0;
  for (std::size_t w = 0; w < tiers.size(); ++w) {
    if (tiers[w] == Tier::none) continue;
    windows[w] = Activity::inactive;
    ranked.push_back(w);
    n_full += tiers[w] == Tier::full;
  }
  std::ranges::stable_sort(ranked,
                           [&](std::size_t a, std::size_t b) { return reference_scores[a] > reference_scores[b]; });
  for (std::size_t i = 0; i < n_full; ++i) windows[ranked[i]] = Activity::active;
  return windows;
}

void Episodes::add(const Episodes& other) {
  for (std::size_t length = 0; length < other.returned.size(); ++length)
    count(returned, length, other.returned[length]);
  for (std::size_t length = 0; length < other.open.size(); ++length) count(open, length, other.open[length]);
}

PooledRatio Episodes::lir(int threshold) const {
  const auto back = static_cast<double>(count_from(returned, threshold));
  return {back, back + static_cast<double>(count_from(open, threshold))};
}

std::optional<double> Episodes::median_return(int threshold) const {
  const std::int64_t n = count_from(returned, threshold);
  if (n == 0) return std::nullopt;
  // The i-th shortest, from 0.
  const auto length_of = [&](std::int64_t i) {
    std::size_t length = static_cast<std::size_t>(threshold);
    while (i >= returned[length]) i -= returned[length++];
    return static_cast<double>(length);
  };
  return (length_of((n - 1) / 2) + length_of(n / 2)) / 2;
}

void EpisodeTracker::observe(std::span<const Activity> windows) {
  if (inactive_events_.size() < windows.size()) inactive_events_.resize(windows.size());
  for (std::size_t w = 0; w < windows.size(); ++w) {
    if (windows[w] == Activity::inactive) ++inactive_events_[w];
    if (windows[w] == Activity::active && inactive_events_[w] > 0) {
      count(returned_, static_cast<std::size_t>(inactive_events_[w]), 1);
      inactive_events_[w] = 0;
    }
  }
}

Episodes EpisodeTracker::episodes() const {
  Episodes episodes{returned_, {}};
  for (const int events : inactive_events_)
    if (events > 0) count(episodes.open, static_cast<std::size_t>(events), 1);
  return episodes;
}

void Transitions::add(const Transitions& other) {
  to_active.add(other.to_active);
  to_inactive.add(other.to_inactive);
}

TransitionTracker::TransitionTracker(std::vector<int> lags) : lags_(std::move(lags)), transitions_(lags_.size()) {
  for (const int lag : lags_) QEVICT_CHECK(lag >= 1, "a transition takes at least one event");
}

void TransitionTracker::observe(std::span<const Activity> windows) {
  for (std::size_t i = 0; i < lags_.size(); ++i) {
    const auto lag = static_cast<std::size_t>(lags_[i]);
    if (recent_.size() < lag) continue;
    const std::vector<Activity>& before = recent_[lag - 1];
    for (std::size_t w = 0; w < before.size(); ++w) {
      const Activity after = at_or(windows, w, Activity::absent);
      if (before[w] == Activity::inactive) transitions_[i].to_active.add({after == Activity::active ? 1.0 : 0.0, 1.0});
      if (before[w] == Activity::active) transitions_[i].to_inactive.add({after == Activity::active ? 0.0 : 1.0, 1.0});
    }
  }
  if (lags_.empty()) return;
  recent_.emplace_front(windows.begin(), windows.end());
  if (recent_.size() > static_cast<std::size_t>(*std::ranges::max_element(lags_))) recent_.pop_back();
}

void MissedMassTracker::event(std::span<const Tier> tiers) {
  Pending pending;
  for (const Tier tier : tiers) pending.evicted.push_back(tier == Tier::evicted);
  pending_.push_back(std::move(pending));
}

void MissedMassTracker::step(std::span<const float> reference, PlainMean& mean) {
  for (Pending& pending : pending_) {
    for (std::size_t w = 0; w < std::min(pending.evicted.size(), reference.size()); ++w)
      if (pending.evicted[w]) pending.mass += reference[w];
    ++pending.steps;
  }
  while (!pending_.empty() && pending_.front().steps == horizon_) {
    mean.add(pending_.front().mass / horizon_);
    pending_.pop_front();
  }
}

void IntervalMass::add_step(std::span<const Tier> tiers, std::span<const float> reference, double reference_sinks,
                            double reference_recent, std::span<const float> policy) {
  for (std::size_t w = 0; w < std::min(tiers.size(), reference.size()); ++w) {
    if (tiers[w] == Tier::full) full += reference[w];
    if (tiers[w] == Tier::evicted) evicted += reference[w];
    if (tiers[w] != Tier::quantized) continue;
    quantized += reference[w];
    policy_quantized += at_or(policy, w, 0.0f);
  }
  sinks += reference_sinks;
  recent += reference_recent;
}

std::optional<double> quantized_score_agreement(std::span<const Tier> tiers, std::span<const float> policy,
                                                std::span<const float> reference) {
  QEVICT_CHECK(policy.size() >= tiers.size() && reference.size() >= tiers.size(), "scores of every window");
  double product = 0, policy_squares = 0, reference_squares = 0;
  int n = 0;
  for (std::size_t w = 0; w < tiers.size(); ++w) {
    if (tiers[w] != Tier::quantized) continue;
    ++n;
    product += static_cast<double>(policy[w]) * reference[w];
    policy_squares += static_cast<double>(policy[w]) * policy[w];
    reference_squares += static_cast<double>(reference[w]) * reference[w];
  }
  if (n < 2 || policy_squares == 0 || reference_squares == 0) return std::nullopt;
  return product / std::sqrt(policy_squares * reference_squares);
}

}  // namespace qevict
