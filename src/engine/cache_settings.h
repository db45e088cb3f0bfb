// A CacheConfig read against its method's row: what the engine runs with.
#pragma once

#include <optional>
#include <vector>

#include "cache/layout.h"
#include "qevict/cache_config.h"
#include "qevict/method.h"
#include "qevict/session.h"  // Setting
#include "ranking/ranking.h"
#include "ranking/weights.h"
#include "routing/allocator.h"

namespace qevict {

struct CacheSettings {
  const Method* method = nullptr;
  const RankingRow* ranking = nullptr;  // null: the method ranks nothing
  ScoreRule scores;                     // the ranking's, with the configured decay
  const WeightRow* weight = nullptr;
  int first_stage_per_mille = 0;  // of a head's windows, taken by score alone before weights count
  const AllocatorRow* allocator = nullptr;
  double floor = 0;       // of an equal share, for every head
  SpendingRule spending;  // without costs, which the layout knows
  LayoutRule rule;
  Recent recent;
  Budget budget;
  std::optional<BudgetBase> budget_base;  // as asked for
  bool promotion = false;

  // Errors: unknown names, listing the known ones; values out of range; overrides that contradict the method.
  static Result<CacheSettings> from(const CacheConfig& config, int n_ctx);
  // Errors: a codec that does not take the model's heads or the window.
  Result<void> check_shape(const CacheShape& shape) const;
  std::vector<Setting> list() const;
};

}  // namespace qevict
