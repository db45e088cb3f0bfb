#include "cache/head_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace qevict {

float sum_of_accumulators(std::span<const float> accumulators, int power) {
  float sum = 0;
  for (const float a : accumulators) sum += power > 1 ? std::pow(a, 1.0f / static_cast<float>(power)) : a;
  return sum;
}

HeadCache::HeadCache(const CacheShape& shape, const LayoutRule& rule, const Rope& rope, ByteMeter& meter)
    : shape_(shape),
      rule_(rule),
      rope_(&rope),
      meter_(&meter),
      payload_(rule.payload_bytes(shape)),
      tail_keys_(meter, ByteKind::f16, 0),
      tail_values_(meter, ByteKind::f16, 0),
      tail_scores_(meter, ByteKind::metadata, 0) {}

TokenView HeadCache::tail() const {
  const auto n = static_cast<std::size_t>(tail_size_);
  return {.keys = {tail_keys_.as<Half>(), n * static_cast<std::size_t>(shape_.key_dim)},
          .values = {tail_values_.as<Half>(), n * static_cast<std::size_t>(shape_.value_dim)},
          .scores = rule_.scores ? std::span<const float>{tail_scores_.as<float>(), n} : std::span<const float>{},
          .first_position = tail_position_,
          .n = tail_size_};
}

std::vector<Candidate> HeadCache::windows() const {
  const int n_full = full_index_.size(), n_codes = code_index_.size();
  std::vector<Candidate> result(static_cast<std::size_t>(n_full + n_codes));
  const std::size_t stride = score_floats(), accumulators = rule_.accumulators();
  const auto fill = [&](Candidate& candidate, const WindowIndex::Entry& entry, Tier tier, const float* scores) {
    const float* floats = scores + static_cast<std::size_t>(entry.slot) * stride;
    candidate.window = entry.window;
    candidate.tier = tier;
    if (accumulators == 1) {
      candidate.score = *floats;
    } else if (accumulators > 1) {
      candidate.score = sum_of_accumulators({floats, accumulators}, rule_.score_power);
    }
    if (rule_.weights) candidate.weight = floats[accumulators];
  };
  constexpr WindowIndex::Entry kEnd{.window = std::numeric_limits<std::int64_t>::max(), .slot = 0, .ledger = false};
  int f = 0, q = 0;
  WindowIndex::Entry full = n_full > 0 ? full_index_[0] : kEnd;
  WindowIndex::Entry code = n_codes > 0 ? code_index_[0] : kEnd;
  const float* full_scores = full_scores_.as<float>();
  const float* code_scores = code_scores_.as<float>();
  for (Candidate& candidate : result) {
    if (code.window < full.window) {
      fill(candidate, code, Tier::quantized, code_scores);
      code = ++q < n_codes ? code_index_[q] : kEnd;
    } else {
      fill(candidate, full, Tier::full, full_scores);
      full = ++f < n_full ? full_index_[f] : kEnd;
    }
  }
  return result;
}

// --- Attention -----------------------------------------------------------------------------------------------------

void HeadCache::append_runs(int begin, int end, std::vector<F16Run>& runs) const {
  const int sinks = sink_tokens();
  const int full_end = sinks + full_tokens();
  const auto key_dim = static_cast<std::size_t>(shape_.key_dim);
  const auto value_dim = static_cast<std::size_t>(shape_.value_dim);
  const auto add = [&](const Half* keys, const Half* values, int first, int last) {
    if (!runs.empty() && runs.back().keys + static_cast<std::size_t>(runs.back().n_tokens) * key_dim == keys &&
        runs.back().values + static_cast<std::size_t>(runs.back().n_tokens) * value_dim == values) {
      runs.back().n_tokens += last - first;
    } else {
      runs.push_back({.keys = keys, .values = values, .n_tokens = last - first, .first_token = first});
    }
  };
  int at = begin;
  if (at < std::min(end, sinks)) {
    const Buffer& sink_keys = rule_.in_cache_positions ? shown_sink_keys_ : sink_keys_;
    add(sink_keys.as<Half>() + static_cast<std::size_t>(at) * key_dim,
        sink_values_.as<Half>() + static_cast<std::size_t>(at) * value_dim, at, std::min(end, sinks));
    at = std::min(end, sinks);
  }
  while (at < std::min(end, full_end)) {
    const int window = (at - sinks) / rule_.zones.window;
    const int offset = (at - sinks) % rule_.zones.window;
    const int stop = std::min(end, sinks + (window + 1) * rule_.zones.window);
    const auto token = static_cast<std::size_t>(full_index_[window].slot * rule_.zones.window + offset);
    add(full_keys_.as<Half>() + token * key_dim, full_values_.as<Half>() + token * value_dim, at, stop);
    at = stop;
  }
  if (at < end) {
    const auto token = static_cast<std::size_t>(at - full_end);
    add(tail_keys_.as<Half>() + token * key_dim, tail_values_.as<Half>() + token * value_dim, at, end);
  }
}

void HeadCache::append_codes(int begin, int end, std::vector<CodeWindow>& codes) const {
  for (int i = begin; i < end; ++i) {
    const WindowIndex::Entry entry = code_index_[i];
    codes.push_back(
        {.record = records_.data() + static_cast<std::size_t>(entry.slot) * payload_,
         .position = static_cast<std::int32_t>(rule_.zones.first_position(static_cast<int>(entry.window)))});
  }
}

HeadView HeadCache::view() const {
  return {.f16 = {},
          .codes = {},
          .codec = rule_.codec,
          .window = rule_.window_shape(shape_),
          .head_data = {head_data_.data(), head_data_.size()},
          .rope = rope_};
}

// --- Scores --------------------------------------------------------------------------------------------------------

std::span<float> HeadCache::tail_scores() { return {tail_scores_.as<float>(), static_cast<std::size_t>(tail_size_)}; }
std::span<float> HeadCache::full_scores(int i) {
  return {full_scores_.as<float>() + static_cast<std::size_t>(full_index_[i].slot) * score_floats(),
          rule_.accumulators()};
}
std::span<float> HeadCache::code_scores(int i) {
  return {code_scores_.as<float>() + static_cast<std::size_t>(code_index_[i].slot) * score_floats(),
          rule_.accumulators()};
}

// --- Queries -------------------------------------------------------------------------------------------------------

void HeadCache::keep_queries(bool keep) {
  QEVICT_CHECK(!routed_, "a routed head keeps the queries it was routed by");
  const std::size_t bytes = keep ? rule_.query_bytes(shape_) : 0;
  if (queries_.size() == bytes) return;
  queries_ = Buffer(*meter_, ByteKind::metadata, bytes);
  query_next_ = queries_held_ = 0;
}

void HeadCache::push_query(const float* query) {
  if (queries_.size() == 0) return;
  const auto floats = static_cast<std::size_t>(shape_.group * shape_.key_dim);
  std::transform(query, query + floats, queries_.as<Half>() + static_cast<std::size_t>(query_next_) * floats,
                 to_half_saturated);
  query_next_ = (query_next_ + 1) % rule_.query_rows;
  queries_held_ = std::min(queries_held_ + 1, rule_.query_rows);
}

std::span<const Half> HeadCache::query(int row) const {
  const auto floats = static_cast<std::size_t>(shape_.group * shape_.key_dim);
  const int slot = (query_next_ + rule_.query_rows - queries_held_ + row) % rule_.query_rows;
  return {queries_.as<Half>() + static_cast<std::size_t>(slot) * floats, floats};
}

// --- Growth --------------------------------------------------------------------------------------------------------

void HeadCache::keep_scores(bool keep) {
  QEVICT_CHECK(!routed_, "a routed head keeps the scores it was routed by");
  if (rule_.scores == keep) return;
  rule_.scores = keep;
  tail_scores_ =
      Buffer(*meter_, ByteKind::metadata, keep ? static_cast<std::size_t>(tail_capacity_) * sizeof(float) : 0);
  if (keep) std::fill_n(tail_scores_.as<float>(), tail_size_, 0.0f);
}

void HeadCache::reserve_tail(int capacity) {
  QEVICT_CHECK(capacity >= tail_size_, "the tail keeps its tokens");
  const auto tokens = static_cast<std::size_t>(capacity);
  tail_keys_.resize(tokens * static_cast<std::size_t>(shape_.key_dim) * sizeof(Half));
  tail_values_.resize(tokens * static_cast<std::size_t>(shape_.value_dim) * sizeof(Half));
  if (rule_.scores) tail_scores_.resize(tokens * sizeof(float));
  tail_capacity_ = capacity;
}

void HeadCache::append(const float* key, const float* value) {
  QEVICT_CHECK(tail_size_ < tail_capacity_, "the f16 region is reserved at its largest");
  const auto at = static_cast<std::size_t>(tail_size_);
  Half* keys = tail_keys_.as<Half>() + at * static_cast<std::size_t>(shape_.key_dim);
  Half* values = tail_values_.as<Half>() + at * static_cast<std::size_t>(shape_.value_dim);
  for (int d = 0; d < shape_.key_dim; ++d) keys[d] = to_half_saturated(key[d]);
  for (int d = 0; d < shape_.value_dim; ++d) values[d] = to_half_saturated(value[d]);
  if (rule_.scores) tail_scores_.as<float>()[at] = 0.0f;
  ++tail_size_;
}

void HeadCache::append(std::span<const Half> keys, std::span<const Half> values, std::span<const float> scores, int n) {
  QEVICT_CHECK(tail_size_ + n <= tail_capacity_, "the f16 region is reserved at its largest");
  const auto at = static_cast<std::size_t>(tail_size_);
  const auto count = static_cast<std::size_t>(n);
  std::memcpy(tail_keys_.as<Half>() + at * static_cast<std::size_t>(shape_.key_dim), keys.data(),
              count * static_cast<std::size_t>(shape_.key_dim) * sizeof(Half));
  std::memcpy(tail_values_.as<Half>() + at * static_cast<std::size_t>(shape_.value_dim), values.data(),
              count * static_cast<std::size_t>(shape_.value_dim) * sizeof(Half));
  if (rule_.scores) std::memcpy(tail_scores_.as<float>() + at, scores.data(), count * sizeof(float));
  tail_size_ += n;
}

void HeadCache::keep_tail(const TokenView& tokens, std::int64_t keep_position, int capacity) {
  const auto skip = static_cast<std::size_t>(keep_position - tokens.first_position);
  const int n = tokens.n - static_cast<int>(skip);
  QEVICT_CHECK(n >= 0 && n <= capacity, "what is left of the tail fits its reserve");
  const auto count = static_cast<std::size_t>(n);
  const auto key_dim = static_cast<std::size_t>(shape_.key_dim);
  const auto value_dim = static_cast<std::size_t>(shape_.value_dim);
  const bool in_place = tail_capacity_ == capacity;
  Buffer keys, values, scores;
  if (!in_place) {
    keys = Buffer(*meter_, ByteKind::f16, static_cast<std::size_t>(capacity) * key_dim * sizeof(Half));
    values = Buffer(*meter_, ByteKind::f16, static_cast<std::size_t>(capacity) * value_dim * sizeof(Half));
    if (rule_.scores) scores = Buffer(*meter_, ByteKind::metadata, static_cast<std::size_t>(capacity) * sizeof(float));
  }
  // `tokens` may be the tail itself.
  std::memmove((in_place ? tail_keys_ : keys).data(), tokens.keys.data() + skip * key_dim,
               count * key_dim * sizeof(Half));
  std::memmove((in_place ? tail_values_ : values).data(), tokens.values.data() + skip * value_dim,
               count * value_dim * sizeof(Half));
  if (rule_.scores) {
    std::memmove((in_place ? tail_scores_ : scores).data(), tokens.scores.data() + skip, count * sizeof(float));
  }
  if (!in_place) {
    tail_keys_ = std::move(keys);
    tail_values_ = std::move(values);
    tail_scores_ = std::move(scores);
  }
  tail_position_ = keep_position;
  tail_size_ = n;
  tail_capacity_ = capacity;
}

}  // namespace qevict
