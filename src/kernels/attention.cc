#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "codec/record.h"
#include "kernels/kernel_table.h"

namespace qevict {

std::vector<TokenRange> cut_ranges(int f16_tokens, int code_tokens, int window_tokens) {
  std::vector<TokenRange> ranges;
  for (int begin = 0; begin < f16_tokens; begin += kRangeTokens)
    ranges.push_back({begin, std::min(begin + kRangeTokens, f16_tokens), false});
  const int step = window_tokens < kRangeTokens ? kRangeTokens / window_tokens * window_tokens : window_tokens;
  for (int begin = 0; begin < code_tokens; begin += step)
    ranges.push_back({begin, std::min(begin + step, code_tokens), true});
  return ranges;
}

namespace {

bool read_codes(const KernelTable& kernels, const DecodeTask& task) {
  return std::ranges::any_of(kernels.read_codes, [&](CodeReader read) { return read != nullptr && read(task); });
}

// Windows of more than 8 tokens for kernels that read codes 8 tokens at a time: cut into those on the way, which costs
// little beside what expanding them would. False, having done nothing, if that cannot be.
bool read_cut_codes(const KernelTable& kernels, const DecodeTask& task) {
  const CodecRow* codec = task.head.codec;
  const WindowShape& window = task.head.window;
  if (kernels.read_codes[0] == nullptr || codec == nullptr || codec->cut == nullptr || window.tokens <= kBlockTokens ||
      window.tokens % kBlockTokens != 0)
    return false;
  thread_local std::vector<std::byte> records;
  thread_local std::vector<CodeWindow> codes;
  HeadView head = task.head;
  head.window.tokens = kBlockTokens;
  const std::size_t bytes = codec->window_bytes(window), part_bytes = codec->window_bytes(head.window);
  const int n = task.range.end - task.range.begin;
  records.resize(static_cast<std::size_t>(n / kBlockTokens) * part_bytes);
  codes.clear();
  for (int token = task.range.begin; token < task.range.end; token += kBlockTokens) {
    const CodeWindow& whole = task.head.codes[static_cast<std::size_t>(token / window.tokens)];
    const std::span<std::byte> part = std::span(records).subspan(codes.size() * part_bytes, part_bytes);
    codec->cut(window, {whole.record, bytes}, token % window.tokens, part);
    codes.push_back({part.data(), whole.position + token % window.tokens});
  }
  head.codes = codes;
  return read_codes(
      kernels, {task.shape, head, {0, n, true}, task.query, task.scale, task.weights, task.weight_stride, task.out});
}

}  // namespace

void attend_decode(const HeadShape& shape, const HeadView& head, const TokenRange& range, std::span<const float> query,
                   float scale, std::span<float> weights, std::size_t weight_stride, const PartialView& out) {
  const KernelTable& kernels = active_kernels();
  const DecodeTask task{shape, head, range, query.data(), scale, weights.data(), weight_stride, out};
  if (!range.codes) return kernels.decode_f16(task);
  if (read_codes(kernels, task) || read_cut_codes(kernels, task)) return;
  kernels.decode_codes(task);
}

void attend_rows(int key_dim, std::span<const float> keys, std::span<const float> queries, std::span<const int> seen,
                 float scale, std::span<float> out) {
  active_kernels().attend_rows({.keys = keys.data(),
                                .queries = queries.data(),
                                .seen = seen.data(),
                                .out = out.data(),
                                .n_tokens = static_cast<int>(keys.size()) / key_dim,
                                .n_queries = static_cast<int>(seen.size()),
                                .key_dim = key_dim,
                                .scale = scale});
}

void merge_partial(const HeadShape& shape, const PartialView& into, const PartialView& other) {
  for (int g = 0; g < shape.group; ++g) {
    if (other.denom[g] == 0.0f) continue;  // and -inf minus -inf never happens
    const float max = std::max(into.max[g], other.max[g]);
    const float keep = into.denom[g] == 0.0f ? 0.0f : std::exp(into.max[g] - max);
    const float add = std::exp(other.max[g] - max);
    into.max[g] = max;
    into.denom[g] = keep * into.denom[g] + add * other.denom[g];
    float* acc = into.acc + std::ptrdiff_t{g} * shape.value_dim;
    const float* other_acc = other.acc + std::ptrdiff_t{g} * shape.value_dim;
    for (int d = 0; d < shape.value_dim; ++d) acc[d] = keep * acc[d] + add * other_acc[d];
  }
}

}  // namespace qevict
