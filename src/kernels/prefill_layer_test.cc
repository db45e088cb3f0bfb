// Prefill stripes of every target: outputs and column sums against the double reference, and the promises about threads
// and calls.
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include "kernels/kernel_test_support.h"

namespace qevict {
namespace {

struct LayerInput {
  HeadShape shape;
  int n_kv_heads;
  int n;
  std::vector<float> q, k, v;  // [n][heads][dim]
};

LayerInput random_layer(const HeadShape& shape, int n_kv_heads, int n, Rng& rng) {
  LayerInput in{shape, n_kv_heads, n, {}, {}, {}};
  const auto fill = [&](std::vector<float>& x, int per_row, double size) {
    for (int i = 0; i < n * per_row; ++i) x.push_back(static_cast<float>(size * rng.normal()));
  };
  fill(in.q, n_kv_heads * shape.group * shape.key_dim, 1.5);
  fill(in.k, n_kv_heads * shape.key_dim, 1.0);
  fill(in.v, n_kv_heads * shape.value_dim, 1.0);
  return in;
}

// Runs rows [0, n) in chunks of the given sizes (the last repeated) with a team of threads.
std::vector<float> run_layer(PrefillLayer& layer, const LayerInput& in, const std::vector<int>& chunks, int n_threads,
                             float scale) {
  const HeadShape& s = in.shape;
  std::vector<float> out(static_cast<std::size_t>(in.n) * in.n_kv_heads * s.group * s.value_dim);
  std::barrier barrier(n_threads);
  const auto work = [&](int thread) {
    std::size_t chunk = 0;
    for (int row = 0; row < in.n;) {
      const int rows = std::min(chunks[std::min(chunk++, chunks.size() - 1)], in.n - row);
      if (thread == 0) layer.next_chunk(rows);
      barrier.arrive_and_wait();
      layer.store(in.k.data() + std::ptrdiff_t{row} * in.n_kv_heads * s.key_dim,
                  in.v.data() + std::ptrdiff_t{row} * in.n_kv_heads * s.value_dim, rows, thread, n_threads);
      barrier.arrive_and_wait();
      layer.attend(in.q.data() + std::ptrdiff_t{row} * in.n_kv_heads * s.group * s.key_dim, rows, scale,
                   out.data() + std::ptrdiff_t{row} * in.n_kv_heads * s.group * s.value_dim, thread, n_threads);
      barrier.arrive_and_wait();
      row += rows;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < n_threads; ++t) threads.emplace_back(work, t);
  work(0);
  for (std::thread& t : threads) t.join();
  return out;
}

struct ReferenceLayer {
  std::vector<double> out;
  std::vector<std::vector<double>> sums;  // [head][past f16, past codes, buffer], mean over the group
};

ReferenceLayer reference_layer(const LayerInput& in, std::span<const TestHead> past, std::span<const float> row_weights,
                               float scale) {
  const HeadShape& s = in.shape;
  ReferenceLayer result;
  result.out.resize(static_cast<std::size_t>(in.n) * in.n_kv_heads * s.group * s.value_dim);
  for (int h = 0; h < in.n_kv_heads; ++h) {
    std::vector<Half> keys, values;
    for (int i = 0; i < in.n; ++i) {
      for (int d = 0; d < s.key_dim; ++d) keys.push_back(to_half(in.k[(i * in.n_kv_heads + h) * s.key_dim + d]));
      for (int d = 0; d < s.value_dim; ++d) values.push_back(to_half(in.v[(i * in.n_kv_heads + h) * s.value_dim + d]));
    }
    HeadView view;
    if (!past.empty()) view = past[h].view();
    const int past_tokens = past.empty() ? 0 : view.f16_tokens() + view.code_tokens();
    std::vector<double>& sums = result.sums.emplace_back(past_tokens + in.n);
    for (int r = 0; r < in.n; ++r) {
      const std::size_t q_at = (std::size_t{1} * r * in.n_kv_heads + h) * s.group * s.key_dim;
      const ReferenceRow row = attend_row_reference(s, past.empty() ? nullptr : &view, keys.data(), values.data(),
                                                    r + 1, std::span<const float>(in.q).subspan(q_at), scale);
      std::copy(row.out.begin(), row.out.end(),
                result.out.begin() + (std::ptrdiff_t{1} * r * in.n_kv_heads + h) * s.group * s.value_dim);
      const double weight = row_weights.empty() ? 1.0 : row_weights[r];
      for (std::size_t i = 0; i < row.probability.size(); ++i)
        sums[i % row.n_tokens] += weight * row.probability[i] / s.group;
    }
  }
  return result;
}

// f32 throughout; products of two bf16 parts each on AMX.
constexpr double kError = 1.5e-5;

TEST(PrefillLayer, MatchesTheReferenceOnEveryTarget) {
  Rng rng(1);
  for (const int dim : {64, 80, 96, 128, 256}) {
    for (const int group : {1, 3, 4, 7}) {
      const LayerInput in = random_layer({dim, dim, group}, 2, 77, rng);
      const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
      const ReferenceLayer want = reference_layer(in, {}, {}, scale);
      for_each_target([&] {
        PrefillLayer layer(in.shape, 2, in.n);
        layer.begin({}, true, {});
        const std::vector<float> out = run_layer(layer, in, {32}, 1, scale);
        EXPECT_LE(relative_error(out, want.out), kError);
        for (int h = 0; h < 2; ++h) {
          std::vector<float> sums(in.n);
          layer.column_sums(h, sums, {}, {});
          EXPECT_LE(relative_error(sums, want.sums[h]), kError);
          double total = 0.0;
          for (const float s : sums) total += s;
          EXPECT_NEAR(total, in.n, 1e-4 * in.n);
        }
      });
    }
  }
}

TEST(PrefillLayer, OddDimensionsAndShortPrompts) {
  Rng rng(2);
  for (const auto& [kd, vd, n] : {std::tuple{4, 4, 1}, {192, 128, 9}, {36, 20, 65}, {3, 5, 130}}) {
    const LayerInput in = random_layer({kd, vd, 2}, 1, n, rng);
    const ReferenceLayer want = reference_layer(in, {}, {}, 0.2f);
    for_each_target([&] {
      PrefillLayer layer(in.shape, 1, n);
      layer.begin({}, true, {});
      EXPECT_LE(relative_error(run_layer(layer, in, {n}, 1, 0.2f), want.out), kError);
    });
  }
}

class PrefillPast : public ::testing::Test {
 protected:
  PrefillPast() {
    Rng rng(3);
    for (int h = 0; h < 2; ++h) {
      TestHead& head = heads_.emplace_back();
      head.shape = {64, 64, 3};
      head.rope = test_rope(32, true);
    }
    for (int h = 0; h < 2; ++h) {  // heads keep different numbers of tokens
      add_f16(heads_[h], 70 - 30 * h, 8, 0, rng);
      add_codes(heads_[h], *find_codec("int4"), 11 - 8 * h, 8, 0, rng);
    }
    for (const TestHead& head : heads_) views_.push_back(head.view());
    in_ = random_layer({64, 64, 3}, 2, 50, rng);
    for (int i = 0; i < 50; ++i) row_weights_.push_back(static_cast<float>(std::pow(0.9, 49 - i)));
  }
  std::vector<TestHead> heads_;
  std::vector<HeadView> views_;
  LayerInput in_;
  std::vector<float> row_weights_;
};

TEST_F(PrefillPast, RowsSeeAllOfItAndColumnSumsCoverIt) {
  const ReferenceLayer want = reference_layer(in_, heads_, row_weights_, 0.125f);
  for_each_target([&] {
    PrefillLayer layer(in_.shape, 2, 50);
    layer.begin(views_, true, row_weights_);
    EXPECT_LE(relative_error(run_layer(layer, in_, {20}, 2, 0.125f), want.out), kError);
    for (int h = 0; h < 2; ++h) {
      std::vector<float> f16(views_[h].f16_tokens()), codes(views_[h].code_tokens()), tokens(50), all;
      layer.column_sums(h, tokens, f16, codes);
      for (const auto* part : {&f16, &codes, &tokens}) all.insert(all.end(), part->begin(), part->end());
      EXPECT_LE(relative_error(all, want.sums[h]), kError);
    }
  });
}

TEST(PrefillLayer, ThreadsAndCallCutsDoNotChangeOneBit) {
  Rng rng(4);
  const LayerInput in = random_layer({64, 64, 3}, 3, 211, rng);
  for_each_target([&] {
    if (simd_target() == "reference") return;  // slow, and the same code below it
    std::vector<float> first_out, first_sums;
    for (const auto& [threads, chunks] :
         {std::pair{1, std::vector<int>{211}}, {2, {211}}, {5, {64}}, {3, {1, 7, 30, 2, 100}}, {2, {13}}}) {
      PrefillLayer layer(in.shape, 3, 300);
      for (int layers = 0; layers < 2; ++layers) {  // the second one finds the first one's leftovers
        layer.begin({}, true, {});
        const std::vector<float> out = run_layer(layer, in, chunks, threads, 0.125f);
        std::vector<float> sums;
        for (int h = 0; h < 3; ++h) {
          std::vector<float> one(211);
          layer.column_sums(h, one, {}, {});
          sums.insert(sums.end(), one.begin(), one.end());
        }
        if (first_out.empty()) first_out = out, first_sums = sums;
        EXPECT_EQ(out, first_out) << threads << " threads, first chunk " << chunks[0];
        EXPECT_EQ(sums, first_sums) << threads << " threads, first chunk " << chunks[0];
      }
    }
  });
}

TEST(PrefillLayer, TheLastRowAloneIsTheSame) {
  Rng rng(5);
  const LayerInput in = random_layer({64, 64, 3}, 2, 45, rng);
  for_each_target([&] {
    PrefillLayer layer(in.shape, 2, 45);
    layer.begin({}, false, {});
    const std::vector<float> all = run_layer(layer, in, {45}, 1, 0.125f);
    layer.begin({}, false, {});
    layer.next_chunk_last_row_only(45);
    layer.store(in.k.data(), in.v.data(), 45, 0, 1);
    std::vector<float> last(all.size());
    layer.attend(in.q.data(), 45, 0.125f, last.data(), 0, 1);
    const std::ptrdiff_t row = 2 * 3 * 64;
    EXPECT_EQ(std::vector<float>(last.end() - row, last.end()), std::vector<float>(all.end() - row, all.end()));
  });
}

TEST(PrefillLayer, PreloadedTokensComeFirst) {
  Rng rng(6);
  const LayerInput in = random_layer({64, 64, 2}, 1, 40, rng);
  const ReferenceLayer want = reference_layer(in, {}, {}, 0.125f);
  for_each_target([&] {
    std::vector<Half> keys, values;
    for (int i = 0; i < 10 * 64; ++i) keys.push_back(to_half(in.k[i])), values.push_back(to_half(in.v[i]));
    PrefillLayer layer(in.shape, 1, 40);
    layer.begin({}, true, {});
    layer.preload(0, keys, values, 10);
    LayerInput rest = in;
    rest.n = 30;
    rest.q.erase(rest.q.begin(), rest.q.begin() + 10 * 2 * 64);
    rest.k.erase(rest.k.begin(), rest.k.begin() + 10 * 64);
    rest.v.erase(rest.v.begin(), rest.v.begin() + 10 * 64);
    const std::vector<float> out = run_layer(layer, rest, {30}, 1, 0.125f);
    EXPECT_EQ(layer.size(), 40);
    const std::vector<double> expected(want.out.begin() + 10 * 2 * 64, want.out.end());
    EXPECT_LE(relative_error(out, expected), kError);
  });
}

TEST(PrefillLayer, HugeInputsStayFinite) {
  Rng rng(7);
  LayerInput in = random_layer({64, 64, 2}, 1, 70, rng);
  for (float& x : in.k) x *= 1e4f;
  for (float& x : in.v) x *= 1e5f;  // beyond f16: saturated, not infinite
  for (float& x : in.q) x *= 1e2f;
  for_each_target([&] {
    PrefillLayer layer(in.shape, 1, 70);
    layer.begin({}, true, {});
    for (const float x : run_layer(layer, in, {70}, 1, 0.125f)) ASSERT_TRUE(std::isfinite(x));
  });
}

}  // namespace
}  // namespace qevict
