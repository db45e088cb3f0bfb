#include "cache/tiered_cache.h"

namespace qevict {

TieredCache::TieredCache(const CacheShape& shape, const LayoutRule& rule, const Rope& rope)
    : shape_(shape), rule_(rule), rope_(&rope) {
  heads_.reserve(shape.heads());
  for (std::size_t i = 0; i < shape.heads(); ++i) heads_.emplace_back(shape, rule, rope, meter_);
}

}  // namespace qevict
