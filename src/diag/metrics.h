// The drift diagnostics of qevict.md section 7 as arithmetic on plain data: tiers of the windows of one (layer, head)
// at each routing event, and attention masses of its windows at each step. Worked examples: Q-DIAG.
//
// An observer keeps one of each tracker per (layer, head), feeds it event by event and step by step, and adds the
// results up over heads: PooledRatio and counts where the definition pools, PlainMean where it takes the mean over
// (layer, head, event).
//
// Arrays are indexed by window id. Windows that are no candidates yet are Tier::none or simply beyond the end.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "cache/routing_plan.h"

namespace qevict {

struct PooledRatio {  // Σ numerators / Σ denominators
  double numerator = 0;
  double denominator = 0;
  void add(const PooledRatio& other);
  std::optional<double> value() const;  // none if the denominator is 0
};

struct PlainMean {
  double sum = 0;
  std::int64_t count = 0;
  void add(std::optional<double> value);  // nothing is not counted
  std::optional<double> value() const;
};

// --- Events: who is where ------------------------------------------------------------------------------------------

// 1 - |A and A'| / |A or A'| of the F sets before and after; none if both are empty.
std::optional<double> selection_churn(std::span<const Tier> before, std::span<const Tier> after);

struct Migrations {
  std::int64_t challenger_full = 0, challenger_quantized = 0, challenger_evicted = 0;
  std::int64_t full_quantized = 0, quantized_full = 0;
  std::int64_t full_evicted = 0, quantized_evicted = 0;
  void add(Tier from, Tier to);  // staying is no migration
  void add(std::span<const Tier> before, std::span<const Tier> after);
  void add(const Migrations& other);
  friend bool operator==(const Migrations&, const Migrations&) = default;
};

// Of one window at one event. Inactive is quantized or evicted.
enum class Activity : std::uint8_t { absent, active, inactive };

std::vector<Activity> policy_activity(std::span<const Tier> tiers);
// The oracle's: of the windows that have a tier the best by reference score (cumulative), as many as are full; ties go
// to the smaller id. reference_scores: [tiers.size()].
std::vector<Activity> oracle_activity(std::span<const Tier> tiers, std::span<const float> reference_scores);

// Inactive episodes by their length in events. One begins at the first event a window is out of the active set and ends
// with its return; eviction does not end it.
struct Episodes {
  std::vector<std::int64_t> returned;  // [length]
  std::vector<std::int64_t> open;      // [length so far], not back at the end
  void add(const Episodes& other);
  // Of the episodes of `threshold` events or more, those that ended with a return.
  PooledRatio lir(int threshold) const;
  // Median length of the returned ones of `threshold` events or more; of an even number the mean of the middle two.
  std::optional<double> median_return(int threshold = 1) const;
};

class EpisodeTracker {
 public:
  void observe(std::span<const Activity> windows);  // one event
  Episodes episodes() const;                        // so far

 private:
  std::vector<int> inactive_events_;  // [window], 0 while active
  std::vector<std::int64_t> returned_;
};

// Over pairs (window, event) with an event `lag` events later.
struct Transitions {
  PooledRatio to_active;    // of the inactive
  PooledRatio to_inactive;  // of the active
  void add(const Transitions& other);
  PooledRatio departures_per_return() const { return {to_inactive.numerator, to_active.numerator}; }
};

class TransitionTracker {
 public:
  explicit TransitionTracker(std::vector<int> lags = {1, 2, 4, 8, 16});
  void observe(std::span<const Activity> windows);  // one event
  const std::vector<int>& lags() const { return lags_; }
  const Transitions& transitions(std::size_t lag_index) const { return transitions_[lag_index]; }

 private:
  std::vector<int> lags_;
  std::vector<Transitions> transitions_;      // [lags]
  std::deque<std::vector<Activity>> recent_;  // newest first, as many as the longest lag
};

// --- Steps: where the mass is --------------------------------------------------------------------------------------

// Future missed mass: mean over the `horizon` steps after an event of the reference mass on what was evicted by then.
class MissedMassTracker {
 public:
  explicit MissedMassTracker(int horizon = 32) : horizon_(horizon) {}
  void event(std::span<const Tier> tiers);
  // reference: mass of each window at a step. Adds the events whose horizon ends here to `mean`.
  void step(std::span<const float> reference, PlainMean& mean);

 private:
  struct Pending {
    std::vector<bool> evicted;  // [window]
    int steps = 0;
    double mass = 0;
  };
  int horizon_;
  std::deque<Pending> pending_;  // oldest first
};

// Masses of one head from one event to the next, with the tiers that the first set. Includes the next event's own step.
struct IntervalMass {
  double full = 0, quantized = 0, evicted = 0;  // reference mass on the windows of each tier
  double sinks = 0, recent = 0;                 // reference mass on the rest
  double policy_quantized = 0;                  // the policy's mass on the quantized windows

  // reference, policy: mass of each window at one step. policy may be empty where it is not wanted.
  void add_step(std::span<const Tier> tiers, std::span<const float> reference, double reference_sinks,
                double reference_recent, std::span<const float> policy);
  // Shares of the windows' mass (they add up to 1), and of all mass.
  PooledRatio full_share() const { return {full, history()}; }
  PooledRatio quantized_share() const { return {quantized, history()}; }
  PooledRatio evicted_share() const { return {evicted, history()}; }
  PooledRatio sinks_share() const { return {sinks, history() + sinks + recent}; }
  PooledRatio recent_share() const { return {recent, history() + sinks + recent}; }
  PooledRatio rq() const { return {policy_quantized, quantized}; }

 private:
  double history() const { return full + quantized + evicted; }
};

// Cosine of policy and reference scores over the quantized windows: of a step's row (qsa_step) or of the accumulators
// (qsa_cumulative). None if there are fewer than two such windows or one side is all zero.
std::optional<double> quantized_score_agreement(std::span<const Tier> tiers, std::span<const float> policy,
                                                std::span<const float> reference);

}  // namespace qevict
