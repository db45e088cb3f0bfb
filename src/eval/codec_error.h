// What a codec does to attention, measured on keys and values alone: no cache, no routing, all tokens behind codes but
// the sinks that every method keeps in full precision.
//
// Four figures, over all queries of all samples:
//   scores   root mean square of score differences over that of the scores, both less their mean over the query's
//            tokens: a softmax does not see a shift
//   outputs  root mean square of output differences over that of the outputs
//   cosine   mean cosine between outputs
//   kl       mean KL divergence of the attention probabilities from the exact ones, nats
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rope.h"
#include "codec/nuq_calibration.h"
#include "qevict/model.h"

namespace qevict {

// One KV head with queries that see all of its tokens.
struct AttentionSample {
  int key_dim = 64;
  int value_dim = 64;
  int first_position = 0;      // of the first token
  std::vector<float> keys;     // [n][key_dim], after RoPE
  std::vector<float> values;   // [n][value_dim]
  std::vector<float> queries;  // [n_queries][key_dim], after RoPE, times the attention's scale
  // TokenSide of all tokens, or empty.
  std::vector<float> scores;        // [n]
  std::vector<float> value_ranges;  // [n][2]
  int n_tokens() const { return static_cast<int>(keys.size()) / key_dim; }
  int n_queries() const { return static_cast<int>(queries.size()) / key_dim; }
};

struct AttentionSet {
  std::string name;  // "gaussian"
  Rope rope;
  int n_kv_heads = 1;                           // samples of a layer, one after the other
  int sink_tokens = 0;                          // at the front of each sample, kept exactly
  const NuqCalibration* calibration = nullptr;  // of the model the samples are from, or none
  std::vector<AttentionSample> samples;         // all of one shape
};

struct CodecError {
  std::string codec;               // "f16" for plain halves
  int window_tokens = 0;           // of the records measured
  double bytes_per_token = 0;      // of one KV head: key and value, metadata included
  double bits_per_element = 0;     // true bits: all bytes of a record over its numbers
  std::size_t bytes_per_head = 0;  // frozen once per head, not in the figures above
  double scores = 0, outputs = 0, cosine = 0, kl = 0;
};

// Every codec that takes the shape, after plain f16, with windows of the codec's own size, or the largest below it that
// the sample holds. Tokens at the end that fill no whole window of 32 are left out, for all alike; a window that would
// end behind them begins earlier. REQUIRES: at least 32 tokens a sample beside the sinks.
std::vector<CodecError> codec_errors(const AttentionSet& set);

// "gaussian"; "outliers": one key channel in 16 and one value channel in 32 ten times as wide; "means x10", "means
// x100": channel means of keys before RoPE that many times their deviation. Queries are scaled so that a query's scores
// have a deviation of 2.
std::vector<AttentionSet> synthetic_attention(int head_dim, int n_tokens);

// Keys and values of all layers and KV heads over the tokens, what codecs ask of the layer beside them, and the queries
// of the last n_rows tokens.
Result<AttentionSet> capture_attention(const Model& model, std::span<const Token> tokens, int n_rows, int n_threads);

}  // namespace qevict
