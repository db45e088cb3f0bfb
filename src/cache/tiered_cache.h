// The cache of a whole sequence: one HeadCache per (layer, KV head), and the bytes of all of them.
#pragma once

#include <vector>

#include "cache/head_cache.h"

namespace qevict {

class TieredCache {
 public:
  // rope must outlive the cache.
  TieredCache(const CacheShape& shape, const LayoutRule& rule, const Rope& rope);
  TieredCache(const TieredCache&) = delete;
  TieredCache& operator=(const TieredCache&) = delete;

  const CacheShape& shape() const { return shape_; }
  const LayoutRule& rule() const { return rule_; }
  const Rope& rope() const { return *rope_; }
  HeadCache& head(int layer, int kv_head) { return heads_[index(layer, kv_head)]; }
  const HeadCache& head(int layer, int kv_head) const { return heads_[index(layer, kv_head)]; }
  std::vector<HeadCache>& heads() { return heads_; }
  const std::vector<HeadCache>& heads() const { return heads_; }
  // Allocated now, free slots included.
  const CacheBytes& bytes() const { return meter_.bytes(); }

 private:
  std::size_t index(int layer, int kv_head) const {
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape_.n_kv_heads) +
           static_cast<std::size_t>(kv_head);
  }
  CacheShape shape_;
  LayoutRule rule_;
  const Rope* rope_;
  ByteMeter meter_;
  std::vector<HeadCache> heads_;
};

}  // namespace qevict
