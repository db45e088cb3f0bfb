#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill_past.h"
#include "kernels/simd_kernels.h"

namespace qevict {
namespace {

constexpr int kLanes = 8;  // of column sums; a constant, so that sums never depend on the machine
constexpr std::size_t kAlign = 64;

struct FreeAligned {
  void operator()(void* memory) const { ::operator delete[](memory, std::align_val_t{kAlign}); }
};
template <class T>
using Buffer = std::unique_ptr<T[], FreeAligned>;

// Zeroed.
template <class T>
Buffer<T> make_buffer(std::size_t n) {
  void* memory = ::operator new[](std::max<std::size_t>(n, 1) * sizeof(T), std::align_val_t{kAlign});
  std::fill_n(static_cast<std::byte*>(memory), n * sizeof(T), std::byte{0});
  return Buffer<T>(static_cast<T*>(memory));
}

// One thread's, made at its first stripe and again if a longer row comes.
struct ThreadScratch {
  Buffer<float> floats;
  std::size_t size = 0;
};

}  // namespace

struct PrefillLayer::State {
  const KernelTable& kernels;
  PrefillKernels prefill;
  HeadShape shape;
  int score_power;
  int n_kv_heads;
  int capacity;  // as given
  int stored;    // capacity padded to kKeyBlock

  Buffer<Half> keys, values;                         // [head][stored][dim]
  Buffer<std::byte> packed_keys, packed_values;      // [head][packed bytes]
  std::size_t packed_key_bytes, packed_value_bytes;  // of one head

  std::span<const HeadView> past;
  bool want_sums = false;
  std::span<const float> row_weights;
  Buffer<float> sums;  // [head][lane][row_floats]
  std::size_t sums_size = 0;
  std::size_t row_floats = 0;  // columns of past and buffer

  int size = 0;
  int first_row = 0;  // of the announced chunk
  int n_rows = 0;
  bool last_row_only = false;
  std::atomic<int> next_task = 0;

  std::mutex scratch_mutex;
  std::vector<std::unique_ptr<ThreadScratch>> scratch;  // [thread]

  State(const HeadShape& head_shape, int heads, int tokens, int power)
      : kernels(active_kernels()),
        prefill(power > 1 && !kernels.prefill.raises ? highway_prefill_kernels() : kernels.prefill),
        shape(head_shape),
        score_power(power),
        n_kv_heads(heads),
        capacity(tokens),
        stored(padded(tokens)) {
    const auto total = static_cast<std::size_t>(n_kv_heads) * stored;
    keys = make_buffer<Half>(total * shape.key_dim);
    values = make_buffer<Half>(total * shape.value_dim);
    packed_key_bytes = prefill.packed_bytes(stored, shape.key_dim);
    packed_value_bytes = prefill.packed_bytes(stored, shape.value_dim);
    packed_keys = make_buffer<std::byte>(packed_key_bytes * n_kv_heads);
    packed_values = make_buffer<std::byte>(packed_value_bytes * n_kv_heads);
  }

  PackedHead head(int h) const {
    const std::ptrdiff_t first = std::ptrdiff_t{h} * stored;
    return {keys.get() + first * shape.key_dim, values.get() + first * shape.value_dim,
            packed_keys.get() + h * packed_key_bytes, packed_values.get() + h * packed_value_bytes};
  }

  const HeadView* past_of(int h) const { return past.empty() ? nullptr : &past[h]; }

  float* lane_sums(int h, int lane) const {
    return sums.get() + (static_cast<std::size_t>(h) * kLanes + lane) * row_floats;
  }

  ThreadScratch& scratch_of(int thread, std::size_t floats) {
    const std::lock_guard<std::mutex> lock(scratch_mutex);
    if (scratch.size() <= static_cast<std::size_t>(thread)) scratch.resize(thread + 1);
    std::unique_ptr<ThreadScratch>& mine = scratch[thread];
    if (mine == nullptr) mine = std::make_unique<ThreadScratch>();
    if (mine->size < floats) {
      mine->floats = make_buffer<float>(floats);
      mine->size = floats;
    }
    return *mine;
  }

  void announce(int rows, bool last_only) {
    QEVICT_CHECK(size + rows <= capacity, "a prefill layer holds at most the tokens it was made for");
    first_row = size;
    n_rows = rows;
    size += rows;
    last_row_only = last_only;
    next_task = 0;
  }
};

PrefillLayer::PrefillLayer(const HeadShape& shape, int n_kv_heads, int capacity, int score_power)
    : state_(new State(shape, n_kv_heads, capacity, score_power)) {}

PrefillLayer::~PrefillLayer() { delete state_; }

void PrefillLayer::begin(std::span<const HeadView> past, bool sums, std::span<const float> row_weights) {
  State& s = *state_;
  QEVICT_CHECK(past.empty() || static_cast<int>(past.size()) == s.n_kv_heads, "one past per KV head");
  QEVICT_CHECK(row_weights.empty() || static_cast<int>(row_weights.size()) >= s.capacity, "one weight per row");
  s.past = past;
  s.want_sums = sums;
  s.row_weights = row_weights;
  s.size = s.first_row = s.n_rows = 0;
  std::size_t past_columns = 0;
  for (int h = 0; h < s.n_kv_heads; ++h) past_columns = std::max(past_columns, PastBlocks::columns(s.past_of(h)));
  s.row_floats = past_columns + s.stored;
  if (!sums) return;
  const std::size_t needed = s.row_floats * kLanes * s.n_kv_heads;
  if (s.sums_size < needed) {
    s.sums = make_buffer<float>(needed);
    s.sums_size = needed;
  } else {
    std::fill_n(s.sums.get(), needed, 0.0f);
  }
}

void PrefillLayer::preload(int head, std::span<const Half> keys, std::span<const Half> values, int n) {
  State& s = *state_;
  QEVICT_CHECK(s.n_rows == 0 && n <= s.capacity, "tokens kept from earlier come first");
  std::copy(keys.begin(), keys.end(), s.keys.get() + std::ptrdiff_t{head} * s.stored * s.shape.key_dim);
  std::copy(values.begin(), values.end(), s.values.get() + std::ptrdiff_t{head} * s.stored * s.shape.value_dim);
  s.prefill.pack(s.shape, s.head(head), 0, n);
  s.size = n;
}

void PrefillLayer::next_chunk(int n_rows) { state_->announce(n_rows, false); }
void PrefillLayer::next_chunk_last_row_only(int n_rows) { state_->announce(n_rows, true); }

void PrefillLayer::store(const float* k, const float* v, int n_rows, int thread, int n_threads) {
  State& s = *state_;
  const auto share = [&](int t) { return static_cast<int>(std::int64_t{n_rows} * t / n_threads); };
  const int begin = share(thread), end = share(thread + 1);
  const auto copy = [&](const float* from, Buffer<Half>& to, int dim) {
    for (int h = 0; h < s.n_kv_heads; ++h) {
      Half* rows = to.get() + (std::ptrdiff_t{h} * s.stored + s.first_row) * dim;
      for (int r = begin; r < end; ++r) {
        const float* row = from + (std::ptrdiff_t{r} * s.n_kv_heads + h) * dim;
        std::transform(row, row + dim, rows + std::ptrdiff_t{r} * dim, to_half_saturated);
      }
    }
  };
  copy(k, s.keys, s.shape.key_dim);
  copy(v, s.values, s.shape.value_dim);
  for (int h = 0; h < s.n_kv_heads; ++h) s.prefill.pack(s.shape, s.head(h), s.first_row + begin, s.first_row + end);
}

void PrefillLayer::attend(const float* q, int n_rows, float scale, float* out, int thread, int /*n_threads*/) {
  State& s = *state_;
  const int n_q_heads = s.n_kv_heads * s.shape.group;
  const std::size_t query_stride = static_cast<std::size_t>(n_q_heads) * s.shape.key_dim;
  const std::size_t out_stride = static_cast<std::size_t>(n_q_heads) * s.shape.value_dim;
  const int stripe_rows = s.prefill.stripe_rows;
  ThreadScratch& scratch = s.scratch_of(thread, s.prefill.scratch_floats(s.shape, stripe_rows, s.row_floats));
  const int first = s.last_row_only ? n_rows - 1 : 0;  // of the chunk
  // A task is one lane of one head: its stripes in ascending order, so that sums do not depend on who runs it.
  for (int task; (task = s.next_task.fetch_add(1, std::memory_order_relaxed)) < s.n_kv_heads * kLanes;) {
    const int h = task / kLanes;
    const int lane = task % kLanes;
    const int stripes_end = (s.first_row + n_rows + stripe_rows - 1) / stripe_rows;
    for (int stripe = (s.first_row + first) / stripe_rows; stripe < stripes_end; ++stripe) {
      if (stripe % kLanes != lane) continue;
      const int row = std::max(stripe * stripe_rows - s.first_row, first);
      const int end = std::min((stripe + 1) * stripe_rows - s.first_row, n_rows);
      s.prefill.stripe({.shape = s.shape,
                        .past = s.past_of(h),
                        .decode_window = s.kernels.decode_window,
                        .head = s.head(h),
                        .query = q + row * query_stride + std::ptrdiff_t{h} * s.shape.group * s.shape.key_dim,
                        .query_stride = query_stride,
                        .out = out + row * out_stride + std::ptrdiff_t{h} * s.shape.group * s.shape.value_dim,
                        .out_stride = out_stride,
                        .first_row = s.first_row + row,
                        .n_rows = end - row,
                        .scale = scale,
                        .sums = s.want_sums && !s.last_row_only ? s.lane_sums(h, lane) : nullptr,
                        .score_power = s.score_power,
                        .row_weights = s.row_weights.empty() ? nullptr : s.row_weights.data() + s.first_row + row,
                        .scratch = scratch.floats.get(),
                        .row_floats = s.row_floats});
    }
  }
}

int PrefillLayer::size() const { return state_->size; }
const Half* PrefillLayer::keys(int head) const { return state_->head(head).keys; }
const Half* PrefillLayer::values(int head) const { return state_->head(head).values; }

void PrefillLayer::column_sums(int head, std::span<float> tokens, std::span<float> past_f16,
                               std::span<float> past_codes) const {
  const State& s = *state_;
  QEVICT_CHECK(s.want_sums, "begin() was asked for column sums");
  const auto add = [&](std::size_t column, std::span<float> out) {
    std::fill(out.begin(), out.end(), 0.0f);
    for (int lane = 0; lane < kLanes; ++lane) {
      const float* from = s.lane_sums(head, lane) + column;
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += from[i];
    }
    for (float& sum : out) sum /= static_cast<float>(s.shape.group);
  };
  add(0, past_f16);
  add(PastBlocks::f16_columns(s.past_of(head)), past_codes);
  add(PastBlocks::columns(s.past_of(head)), tokens);
}

std::size_t PrefillLayer::kv_bytes() const {
  const State& s = *state_;
  return std::size_t{1} * s.n_kv_heads * s.stored * (s.shape.key_dim + s.shape.value_dim) * sizeof(Half);
}

std::size_t PrefillLayer::workspace_bytes() const {
  const State& s = *state_;
  std::size_t scratch = 0;
  for (const auto& one : s.scratch) scratch += one == nullptr ? 0 : one->size * sizeof(float);
  return kv_bytes() + (s.packed_key_bytes + s.packed_value_bytes) * s.n_kv_heads + s.sums_size * sizeof(float) +
         scratch;
}

}  // namespace qevict
