// Prefill stripes on AMX tiles (16 x 32 by 32 x 16 products of bf16 with f32 sums).
//
// Every number is split into two bf16, high and low, and a product is taken as high*high + low*high + high*low: 16 bits
// of each factor, so that results are as good as f32's to about 1e-5. f16 keys and values are exact in two bf16.
//
// A stripe goes over the keys twice: for each row's maximum and denominator, then for probabilities, column sums and
// outputs. Logits are computed twice and never stored beyond one block of 16 rows x 128 keys.
#include "kernels/prefill_amx.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/prefill_past.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)

#include <sys/syscall.h>
#include <unistd.h>

// GCC 12's own intrinsics start from undefined registers and warn about them.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,avx2,bmi2,amx-tile,amx-bf16")
#include <immintrin.h>

#include "kernels/amx_tiles.h"
#include "kernels/exp2_avx512.h"

namespace qevict {
namespace {

void pack(const HeadShape& shape, const PackedHead& head, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const Half* key = head.keys + std::ptrdiff_t{i} * shape.key_dim;
    const Half* value = head.values + std::ptrdiff_t{i} * shape.value_dim;
    pack_key([&](int c) { return _cvtsh_ss(key[c].bits); }, i, shape.key_dim, head.packed_keys);
    pack_value([&](int c) { return _cvtsh_ss(value[c].bits); }, i, shape.value_dim, head.packed_values);
  }
}

// How many of the step's keys a row sees.
struct Sight {
  int first_row;  // of the stripe, in the buffer
  int group;
  int of(const Step& step, int row) const {
    if (step.first_key < 0) return step.valid;
    return std::clamp(first_row + row / group + 1 - step.first_key, 0, step.n);
  }
};

QEVICT_INLINE __m512 logit_at(const float* row, int key, int seen) {
  const __m512 x = _mm512_load_ps(row + key);
  if (key + 16 <= seen) return x;
  const int lanes = std::max(0, seen - key);
  return _mm512_mask_mov_ps(_mm512_set1_ps(kMasked), static_cast<__mmask16>((1u << lanes) - 1), x);
}

// Running maximum and sum of exponentials of one row, lane by lane, over kVectors vectors of logits.
template <int kVectors, class Logit>
QEVICT_INLINE void update_row(Logit logit, float* row_max, float* row_sum) {
  __m512 x[kVectors];
  for (int i = 0; i < kVectors; ++i) x[i] = logit(i);
  const __m512 before = _mm512_load_ps(row_max);
  __m512 max = before;
  for (int i = 0; i < kVectors; ++i) max = _mm512_max_ps(max, x[i]);
  __m512 sum = _mm512_load_ps(row_sum);
  if (_mm512_cmp_ps_mask(max, before, _CMP_GT_OQ) != 0) {  // seldom after the first steps
    sum = _mm512_mul_ps(sum, exp2_of(_mm512_sub_ps(before, max)));
    _mm512_store_ps(row_max, max);
  }
  for (int i = 0; i < kVectors; ++i) x[i] = exp2_of(_mm512_sub_ps(x[i], max));
  for (int i = 0; i < kVectors; ++i) sum = _mm512_add_ps(sum, x[i]);
  _mm512_store_ps(row_sum, sum);
}

void update_denominators(const RowTile& tile, const Step& step, const Sight& sight, int first, const float* logits) {
  for (int r = 0; r < tile.rows; ++r) {
    const int seen = sight.of(step, first + r);
    const float* row = logits + r * kStepKeys;
    float *max = tile.max + 16 * r, *sum = tile.sum + 16 * r;
    if (seen == kStepKeys) {
      update_row<kStepKeys / 16>([&](int i) { return _mm512_load_ps(row + 16 * i); }, max, sum);
    } else {
      for (int key = 0; key < seen; key += 16) update_row<1>([&](int) { return logit_at(row, key, seen); }, max, sum);
    }
  }
}

// One maximum and one denominator per row.
void finish_denominators(const RowTile& tile, float* max_of_row, float* inverse) {
  for (int r = 0; r < tile.rows; ++r) {
    const __m512 lanes = _mm512_load_ps(tile.max + 16 * r);
    const float max = _mm512_reduce_max_ps(lanes);
    const __m512 sum =
        _mm512_mul_ps(_mm512_load_ps(tile.sum + 16 * r), exp2_of(_mm512_sub_ps(lanes, _mm512_set1_ps(max))));
    // A lane that saw no key has counted its masks, as ones: its maximum says so.
    inverse[r] = 1.0f / _mm512_mask_reduce_add_ps(_mm512_cmp_ps_mask(lanes, _mm512_set1_ps(kMasked), _CMP_GT_OQ), sum);
    max_of_row[r] = max;
  }
}

// Upper halves of a, in the lower halves, and of b.
QEVICT_INLINE __m512i upper_halves(__m512i a, __m512i b) {
  return _mm512_mask_mov_epi16(_mm512_srli_epi32(a, 16), 0xAAAAAAAAu, b);
}

// Probabilities, not yet divided, as split tiles; their weighted columns are added to sums.
void probabilities(const RowTile& tile, const Step& step, const Sight& sight, int first, const float* logits,
                   const float* max_of_row, std::byte* p, float* sums) {
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u)), half_unit = _mm512_set1_epi32(0x8000);
  for (int key = 0; key < step.n; key += 32) {
    std::byte* high = p + key / 32 * 2 * kTileBytes;
    __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0;
    if (sums != nullptr) {
      sum0 = _mm512_loadu_ps(sums + key);
      sum1 = _mm512_loadu_ps(sums + key + 16);
    }
    for (int r = 0; r < tile.rows; ++r) {
      const int seen = sight.of(step, first + r) - key;
      const __m512 max = _mm512_set1_ps(max_of_row[r]);
      const float* row = logits + r * kStepKeys + key;
      __m512 a = exp2_of(_mm512_sub_ps(_mm512_load_ps(row), max));
      __m512 b = exp2_of(_mm512_sub_ps(_mm512_load_ps(row + 16), max));
      if (seen < 32) {
        const auto lanes = [](int n) { return static_cast<__mmask16>((1u << std::clamp(n, 0, 16)) - 1); };
        a = _mm512_maskz_mov_ps(lanes(seen), a);
        b = _mm512_maskz_mov_ps(lanes(seen - 16), b);
      }
      const __m512 w = _mm512_set1_ps(tile.weight[r]);
      sum0 = _mm512_fmadd_ps(a, w, sum0);
      sum1 = _mm512_fmadd_ps(b, w, sum1);
      const __m512i rounded_a = _mm512_add_epi32(_mm512_castps_si512(a), half_unit);
      const __m512i rounded_b = _mm512_add_epi32(_mm512_castps_si512(b), half_unit);
      const __m512 rest_a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_si512(rounded_a, high_half)));
      const __m512 rest_b = _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_and_si512(rounded_b, high_half)));
      _mm512_store_si512(high + 64 * r, upper_halves(rounded_a, rounded_b));
      _mm512_store_si512(high + kTileBytes + 64 * r,
                         upper_halves(_mm512_castps_si512(rest_a), _mm512_castps_si512(rest_b)));
    }
    if (sums != nullptr) {
      _mm512_storeu_ps(sums + key, sum0);
      _mm512_storeu_ps(sums + key + 16, sum1);
    }
  }
}

// Scratch of a stripe, carved from the task's.
struct Parts {
  int rows, tiles, depth, channels;
  std::byte* query;   // [tile][high, low][depth] tiles
  float* acc;         // [tile][channels][16][16]
  float* max;         // [tile][16][16]
  float* sum;         // likewise
  float* max_of_row;  // [tile][16]
  float* inverse;     // likewise
  float* weight;      // likewise
  float* logits;      // [16][kStepKeys]
  std::byte* p;
  std::byte* past_keys;  // one block
  std::byte* past_values;
  float* past_block;

  static std::size_t floats(const HeadShape& shape, int n_rows) {
    const std::size_t tiles = (static_cast<std::size_t>(n_rows) * shape.group + 15) / 16;
    return tiles * (2 * depth_tiles(shape.key_dim) * 256 + channel_tiles(shape.value_dim) * 256 + 2 * 256 + 3 * 16) +
           2 * 16 * kStepKeys +
           (packed_bytes(kKeyBlock, shape.key_dim) + packed_bytes(kKeyBlock, shape.value_dim)) / 4 +
           PastBlocks::floats(shape);
  }
  explicit Parts(const StripeTask& task)
      : rows(task.n_rows * task.shape.group),
        tiles((rows + 15) / 16),
        depth(depth_tiles(task.shape.key_dim)),
        channels(channel_tiles(task.shape.value_dim)) {
    float* at = task.scratch;
    const auto take = [&](std::size_t n) { return std::exchange(at, at + n); };
    query = reinterpret_cast<std::byte*>(take(std::size_t{1} * tiles * 2 * depth * 256));
    acc = take(std::size_t{1} * tiles * channels * 256);
    max = take(std::size_t{1} * tiles * 256);
    sum = take(std::size_t{1} * tiles * 256);
    max_of_row = take(std::size_t{1} * tiles * 16);
    inverse = take(std::size_t{1} * tiles * 16);
    weight = take(std::size_t{1} * tiles * 16);
    logits = take(16 * kStepKeys);
    p = reinterpret_cast<std::byte*>(take(16 * kStepKeys));
    past_keys = reinterpret_cast<std::byte*>(take(packed_bytes(kKeyBlock, task.shape.key_dim) / 4));
    past_values = reinterpret_cast<std::byte*>(take(packed_bytes(kKeyBlock, task.shape.value_dim) / 4));
    past_block = at;
  }
  RowTile tile(int i) const {
    return {query + std::ptrdiff_t{i} * 2 * depth * kTileBytes,
            acc + std::ptrdiff_t{i} * channels * 256,
            max + std::ptrdiff_t{i} * 256,
            sum + std::ptrdiff_t{i} * 256,
            weight + std::ptrdiff_t{i} * 16,
            std::min(16, rows - 16 * i)};
  }
};

void load_queries(const StripeTask& task, const Parts& parts) {
  std::memset(parts.query, 0, std::size_t{2} * parts.tiles * parts.depth * kTileBytes);
  for (int row = 0; row < parts.rows; ++row) {
    const int group = task.shape.group, dim = task.shape.key_dim;
    const float* q = task.query + (row / group) * task.query_stride + std::ptrdiff_t{row % group} * dim;
    std::byte* tile = parts.query + std::ptrdiff_t{row / 16} * 2 * parts.depth * kTileBytes + row % 16 * 64;
    for (int c = 0; c < dim; ++c) {
      const Split s = split(q[c] * (task.scale * kLog2E));
      std::byte* at = tile + c / kDepth * kTileBytes + c % kDepth * 2;
      std::memcpy(at, &s.high, 2);
      std::memcpy(at + parts.depth * kTileBytes, &s.low, 2);
    }
  }
}

// Calls body(step) for the past's blocks and then for the buffer up to the last visible key.
template <class Body>
void for_steps(const StripeTask& task, const Parts& parts, Body body) {
  const HeadShape& shape = task.shape;
  PastBlocks past(task, parts.past_block);
  while (past.next()) {
    for (int key = 0; key < kKeyBlock; ++key) {
      const float* k = past.keys() + std::ptrdiff_t{key} * shape.key_dim;
      const float* v = past.values() + std::ptrdiff_t{key} * shape.value_dim;
      pack_key([&](int c) { return k[c]; }, key, shape.key_dim, parts.past_keys);
      pack_value([&](int c) { return v[c]; }, key, shape.value_dim, parts.past_values);
    }
    body(Step{parts.past_keys, parts.past_values, past.column(), kKeyBlock, -1, past.tokens()});
  }
  const int visible = padded(task.first_row + task.n_rows);
  for (int key = 0; key < visible; key += kStepKeys) {
    const int n = std::min(kStepKeys, visible - key);
    body(Step{task.head.packed_keys + key / 16 * key_group_bytes(shape.key_dim),
              task.head.packed_values + key / 32 * value_group_bytes(shape.value_dim), past.total_columns() + key, n,
              key, n});
  }
}

void stripe(const StripeTask& task) {
  const HeadShape& shape = task.shape;
  const Parts parts(task);
  const Sight sight{task.first_row, shape.group};
  // ggml configures the tiles of its threads once and expects to find them so for good.
  alignas(64) std::byte found[64];
  _tile_storeconfig(found);
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
  // Padding channels and rows must be zero, whatever the scratch held.
  std::memset(parts.past_keys, 0, packed_bytes(kKeyBlock, shape.key_dim));
  std::memset(parts.past_values, 0, packed_bytes(kKeyBlock, shape.value_dim));
  std::memset(parts.p, 0, 16 * kStepKeys * sizeof(float));
  std::fill_n(parts.acc, std::ptrdiff_t{parts.tiles} * parts.channels * 256, 0.0f);
  std::fill_n(parts.sum, std::ptrdiff_t{parts.tiles} * 256, 0.0f);
  std::fill_n(parts.max, std::ptrdiff_t{parts.tiles} * 256, kMasked);
  load_queries(task, parts);

  const auto for_seeing_tiles = [&](const Step& step, auto body) {
    for (int i = 0; i < parts.tiles; ++i) {
      const RowTile tile = parts.tile(i);
      if (sight.of(step, 16 * i + tile.rows - 1) == 0) continue;
      tile_logits(tile, step, parts.depth, parts.logits);
      body(tile, i);
    }
  };
  for_steps(task, parts, [&](const Step& step) {
    for_seeing_tiles(step,
                     [&](const RowTile& tile, int i) { update_denominators(tile, step, sight, 16 * i, parts.logits); });
  });
  for (int i = 0; i < parts.tiles; ++i) {
    const RowTile tile = parts.tile(i);
    finish_denominators(tile, parts.max_of_row + 16 * i, parts.inverse + 16 * i);
    for (int r = 0; r < tile.rows; ++r) {
      const int row = (16 * i + r) / shape.group;
      tile.weight[r] = parts.inverse[16 * i + r] * (task.row_weights != nullptr ? task.row_weights[row] : 1.0f);
    }
  }
  for_steps(task, parts, [&](const Step& step) {
    for_seeing_tiles(step, [&](const RowTile& tile, int i) {
      probabilities(tile, step, sight, 16 * i, parts.logits, parts.max_of_row + 16 * i, parts.p,
                    task.sums != nullptr ? task.sums + step.column : nullptr);
      tile_values(tile, step, parts.p, parts.channels);
    });
  });
  _tile_loadconfig(found);  // all zeros, where nothing was configured, releases the tiles
  for (int row = 0; row < parts.rows; ++row) {
    const int group = shape.group;
    float* out = task.out + (row / group) * task.out_stride + std::ptrdiff_t{row % group} * shape.value_dim;
    const float* acc = parts.acc + std::ptrdiff_t{row / 16} * parts.channels * 256 + row % 16 * 16;
    for (int c = 0; c < shape.value_dim; ++c) out[c] = acc[c / 16 * 256 + c % 16] * parts.inverse[row];
  }
}

std::size_t scratch_floats(const HeadShape& shape, int n_rows, std::size_t) { return Parts::floats(shape, n_rows); }

bool cpu_has_amx_bf16() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16");
}

}  // namespace

bool enable_amx_bf16() {
  if (!cpu_has_amx_bf16()) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

PrefillKernels amx_prefill_kernels() { return {64, &packed_bytes, &scratch_floats, &pack, &stripe, false}; }

}  // namespace qevict

#pragma GCC pop_options

#else

namespace qevict {
bool enable_amx_bf16() { return false; }
PrefillKernels amx_prefill_kernels() { return {}; }
}  // namespace qevict

#endif
