#include "model/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "ggml-cpp.h"
#include "model/compute.h"

namespace qevict {
namespace {

constexpr int kBlock = 32;

std::vector<float> noise(std::size_t n, float mean, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(mean, 1.0f);
  std::vector<float> values(n);
  for (float& value : values) value = normal(rng);
  return values;
}

std::vector<float> decoded(ggml_type type, std::span<const std::byte> rows, std::size_t n) {
  std::vector<float> values(n);
  ggml_get_type_traits(type)->to_float(rows.data(), values.data(), static_cast<std::int64_t>(n));
  return values;
}

TEST(SplitQ41, PartsAddUpToTheWeights) {
  constexpr std::int64_t kIn = 96, kOut = 5;
  const auto n = static_cast<std::size_t>(kIn * kOut);
  const std::vector<float> weights = noise(n, 0.7f, 1);
  std::vector<std::byte> whole(ggml_row_size(GGML_TYPE_Q4_1, kIn) * kOut);
  ggml_quantize_chunk(GGML_TYPE_Q4_1, weights.data(), whole.data(), 0, kOut, kIn, nullptr);
  std::vector<std::byte> part(ggml_row_size(GGML_TYPE_Q4_0, kIn) * kOut);
  std::vector<float> offsets(n / kBlock);
  split_q4_1(whole, kIn, kOut, part, offsets);
  const std::vector<float> want = decoded(GGML_TYPE_Q4_1, whole, n), got = decoded(GGML_TYPE_Q4_0, part, n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t row = i / kIn, block = i % kIn / kBlock;
    EXPECT_NEAR(got[i] + offsets[block * kOut + row], want[i], 1e-6) << i;
  }
}

// y = weight x + offsets sums, computed by ggml and by hand.
struct Product {
  std::vector<float> weight, offsets, x, y;

  Product(int n_in, int n_out, int n_tokens, int n_threads)
      : weight(noise(static_cast<std::size_t>(n_in) * n_out, 0.0f, 2)),
        offsets(noise(static_cast<std::size_t>(n_in / kBlock) * n_out, 0.0f, 3)),
        x(noise(static_cast<std::size_t>(n_in) * n_tokens, 0.2f, 4)) {
    auto backend = CpuBackend::create(n_threads);
    if (!backend) throw std::runtime_error(backend.error().message);
    Graph graph = Graph::with_room_for(8);
    ggml_context* context = graph.context.get();
    const Matrix matrix{new_input(context, GGML_TYPE_F32, n_in, n_out, "weight"),
                        new_input(context, GGML_TYPE_F32, n_out, n_in / kBlock, "offsets")};
    ggml_tensor* in = new_input(context, GGML_TYPE_F32, n_in, n_tokens, "x");
    ggml_tensor* out = multiply(context, matrix, in);
    ggml_set_output(out);
    ggml_build_forward_expand(graph.graph, out);
    const ggml_backend_buffer_ptr memory(ggml_backend_alloc_ctx_tensors(context, (*backend)->get()));
    ggml_backend_tensor_set(matrix.weight, weight.data(), 0, weight.size() * sizeof(float));
    ggml_backend_tensor_set(matrix.offsets, offsets.data(), 0, offsets.size() * sizeof(float));
    ggml_backend_tensor_set(in, x.data(), 0, x.size() * sizeof(float));
    if (!(*backend)->compute(graph.graph)) throw std::runtime_error("not computed");
    y.resize(static_cast<std::size_t>(n_out) * n_tokens);
    ggml_backend_tensor_get(out, y.data(), 0, y.size() * sizeof(float));
  }
};

TEST(Multiply, AddsOffsetsTimesTheSumsOfBlocks) {
  for (const int n_out : {1, 24, 200}) {
    for (const int n_tokens : {1, 3, 4, 7, 33}) {
      constexpr int kIn = 96;
      const Product product(kIn, n_out, n_tokens, 2);
      for (int t = 0; t < n_tokens; ++t) {
        for (int row = 0; row < n_out; ++row) {
          double want = 0.0;
          for (int i = 0; i < kIn; ++i)
            want += (static_cast<double>(product.weight[row * kIn + i]) + product.offsets[i / kBlock * n_out + row]) *
                    product.x[t * kIn + i];
          EXPECT_NEAR(product.y[t * n_out + row], want, 1e-3) << n_out << " rows, token " << t << ", row " << row;
        }
      }
    }
  }
}

// The same token by itself and among others, on any number of threads.
TEST(Multiply, DoesNotDependOnThreadsOrNeighbours) {
  const Product many(64, 136, 21, 3), fewer_threads(64, 136, 21, 1), one(64, 136, 1, 2);
  EXPECT_EQ(many.y, fewer_threads.y);
  for (int row = 0; row < 136; ++row) EXPECT_NEAR(one.y[row], many.y[row], 1e-4);  // ggml's own matmul may differ
}

TEST(Multiply, WithoutOffsetsIsGgmlsMatmul) {
  Graph graph = Graph::with_room_for(4);
  ggml_context* context = graph.context.get();
  ggml_tensor* x = new_input(context, GGML_TYPE_F32, 32, 2, "x");
  EXPECT_EQ(multiply(context, {new_input(context, GGML_TYPE_F32, 32, 4, "weight")}, x)->op, GGML_OP_MUL_MAT);
}

}  // namespace
}  // namespace qevict
