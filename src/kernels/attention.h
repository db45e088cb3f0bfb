// Attention of one KV head over what its cache holds: f16 runs and windows of codes, in views only.
//
// Decode works on fixed ranges of tokens, so that its result does not depend on the number of threads: each range
// leaves a mergeable state {max, denominator, weighted sum} and the unnormalised weight of every token; the caller
// merges the ranges in order. Logical token order of a head is: all f16 tokens (sinks, full-precision windows, recent;
// ascending positions), then all tokens of quantized windows (ascending).
//
// Every function is noexcept in effect: it is called from ggml's threads. Targets: reference (attention_ref.h, double)
// and SIMD (Highway, dispatched once per call).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/half.h"
#include "base/rope.h"
#include "codec/codec.h"

namespace qevict {

struct HeadShape {
  int key_dim = 64;    // D of keys and queries
  int value_dim = 64;  // D of values and outputs
  int group = 1;       // query heads that share this KV head
};

// Contiguous f16 tokens. first_token: index of its first token in the head's list of f16 tokens.
struct F16Run {
  const Half* keys = nullptr;    // [n_tokens][key_dim], after RoPE
  const Half* values = nullptr;  // [n_tokens][value_dim]
  std::int32_t n_tokens = 0;
  std::int32_t first_token = 0;
};

// One window of codes; `position` is the true position of its first token.
struct CodeWindow {
  const std::byte* record = nullptr;
  std::int32_t position = 0;
};

// Everything one KV head attends to. Spans borrow from the cache and are valid until it changes.
struct HeadView {
  std::span<const F16Run> f16;
  std::span<const CodeWindow> codes;
  const CodecRow* codec = nullptr;       // of `codes`; null if there are none
  WindowShape window;                    // of `codes`
  std::span<const std::byte> head_data;  // the codec's frozen parameters of this head
  const Rope* rope = nullptr;            // rotation of the keys behind the codes

  int f16_tokens() const { return f16.empty() ? 0 : f16.back().first_token + f16.back().n_tokens; }
  int code_tokens() const { return static_cast<int>(codes.size()) * window.tokens; }
};

// Tokens [begin, end) of one of the two lists. For codes both are multiples of window.tokens.
struct TokenRange {
  int begin = 0;
  int end = 0;
  bool codes = false;
};

// Length of a decode range in tokens: a constant, so that sums never depend on the machine. A head with more than
// kRangeTokens f16 tokens is cut at every multiple of it, and so is the list of code tokens.
inline constexpr int kRangeTokens = 1024;
std::vector<TokenRange> cut_ranges(int f16_tokens, int code_tokens, int window_tokens);

// State of `group` query heads over one range. Empty is {-inf, 0, 0...}.
struct PartialView {
  float* max;    // [group]
  float* denom;  // [group]
  float* acc;    // [group][value_dim]
};

// into = both ranges together, for every query head. An empty state changes nothing.
void merge_partial(const HeadShape& shape, const PartialView& into, const PartialView& other);

// Decode: one query token. query: [group][key_dim] after RoPE, NOT yet scaled by `scale` (1/sqrt(key_dim) as the model
// says). weights: [group][weight_stride], entry g*weight_stride + (token - range.begin) becomes exp(logit - max[g]).
// Keys behind codes are rotated at their own positions, unless the codec holds them after RoPE.
void attend_decode(const HeadShape& shape, const HeadView& head, const TokenRange& range, std::span<const float> query,
                   float scale, std::span<float> weights, std::size_t weight_stride, const PartialView& out);

// Rows of attention by themselves, of many queries over the same tokens. keys: [n][key_dim] after RoPE, queries:
// [seen.size()][key_dim] after RoPE, not scaled; query r sees the first seen[r] >= 1 tokens. out: [seen.size()][n]
// probabilities, 0 for what is not seen.
void attend_rows(int key_dim, std::span<const float> keys, std::span<const float> queries, std::span<const int> seen,
                 float scale, std::span<float> out);

// --- Prefill -------------------------------------------------------------------------------------------------------

// One layer's uncompressed keys and values while it is being prefilled, and stripe attention over them: exact, causal,
// shared by the query heads of a group, with column sums of the probabilities as a by-product.
//
// The buffer of KV head h holds tokens 0..size-1, whose true positions are first_position + index. Rows additionally
// see everything in `past` (a compressed cache of earlier turns; empty for a first prompt), all of it, without a mask.
// Column sums are exact, independent of thread count and of how rows are cut into calls: stripes are dealt to kLanes
// fixed lanes by absolute row number, a lane adds row after row, and lanes are added in order.
//
// Threads: store() and attend() are called by all threads of a team at once, (thread, n_threads); a barrier must lie
// between the two and between attend() and the next store(). Everything else is single-threaded.
class PrefillLayer {
 public:
  // Workspace for up to `capacity` tokens. Column sums are of the score_power-th power of each row's mean over the
  // group.
  PrefillLayer(const HeadShape& shape, int n_kv_heads, int capacity, int score_power = 1);
  ~PrefillLayer();
  PrefillLayer(const PrefillLayer&) = delete;
  PrefillLayer& operator=(const PrefillLayer&) = delete;

  // Empties the buffer for the next layer. past: [n_kv_heads] or empty; views must stay valid until finish().
  // sums: false skips column sums (method `full`).
  // row_weights: factor of each absolute row's contribution to the sums, [capacity]; empty means 1 for each.
  void begin(std::span<const HeadView> past, bool sums, std::span<const float> row_weights);
  // Puts tokens kept from earlier (recent region of a later turn) at the front; only directly after begin().
  // keys/values: [n][dim] of one head. Every head must be given the same n.
  void preload(int head, std::span<const Half> keys, std::span<const Half> values, int n);

  // Appends rows [size, size + n_rows) of k and v, rounding to f16. k: [n_rows][n_kv_heads][key_dim] after RoPE,
  // v: [n_rows][n_kv_heads][value_dim]. n_rows as announced by next_chunk.
  void store(const float* k, const float* v, int n_rows, int thread, int n_threads);
  // Row r of the n_rows just stored sees past + buffer tokens 0..size-n_rows+r. q: [n_rows][n_kv_heads*group][key_dim]
  // after RoPE, out: [n_rows][n_kv_heads*group][value_dim].
  void attend(const float* q, int n_rows, float scale, float* out, int thread, int n_threads);
  // Called once by one thread before the team enters store(): announces n_rows, which size() then includes, and resets
  // the work counters.
  void next_chunk(int n_rows);
  // As next_chunk, for a layer of which only the last row's output is used and no sums are: attend() then computes that
  // row alone (other rows of `out` are left unspecified).
  void next_chunk_last_row_only(int n_rows);

  int size() const;
  const Half* keys(int head) const;    // [size][key_dim], after RoPE
  const Half* values(int head) const;  // [size][value_dim]
  // Column sums of the rows' mean over the group (to the score_power, weighted by row_weights). After the last
  // attend(). tokens: [size]; past_f16: [past.f16_tokens()]; past_codes: [past.code_tokens()]; spans may be empty if
  // not wanted.
  void column_sums(int head, std::span<float> tokens, std::span<float> past_f16, std::span<float> past_codes) const;

  std::size_t workspace_bytes() const;  // allocated, all of it
  std::size_t kv_bytes() const;         // of that, the f16 keys and values

 private:
  struct State;
  State* state_;
};

// --- Targets -------------------------------------------------------------------------------------------------------

// Name of the SIMD target in use: "AVX3_AMX", "AVX3_VNNI", "AVX3", "AVX2", "NEON", "SCALAR", or "reference".
std::string_view simd_target();
std::vector<std::string_view> simd_targets();  // this machine's, best first, "reference" last
// Forces one by name (case-insensitive); false if this machine or build has no such target. Not thread-safe: call
// before the first attention.
bool force_simd_target(std::string_view name);

}  // namespace qevict
