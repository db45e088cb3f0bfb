// Rope::rotate against ggml_rope_ext itself.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/rope.h"
#include "model/compute.h"
#include "model/hparams.h"

namespace qevict {
namespace {

constexpr int kHeads = 2;

std::vector<float> ggml_rotated(const RopeArguments& a, std::vector<float> factors, const std::vector<float>& heads,
                                const std::vector<std::int32_t>& positions) {
  Graph graph = Graph::with_room_for(16);
  ggml_context* context = graph.context.get();
  const auto n_tokens = static_cast<std::int64_t>(positions.size());
  ggml_tensor* x = new_input(context, GGML_TYPE_F32, a.n_rot * kHeads, n_tokens, "x");
  ggml_tensor* p = new_input(context, GGML_TYPE_I32, n_tokens, 1, "p");
  ggml_tensor* f = factors.empty() ? nullptr : new_input(context, GGML_TYPE_F32, a.n_rot / 2, 1, "f");
  ggml_tensor* y =
      ggml_rope_ext(context, ggml_reshape_3d(context, x, a.n_rot, kHeads, n_tokens), p, f, a.n_rot, a.mode,
                    a.n_ctx_orig, a.freq_base, a.freq_scale, a.ext_factor, a.attn_factor, a.beta_fast, a.beta_slow);
  ggml_set_output(y);
  ggml_build_forward_expand(graph.graph, y);
  auto cpu = CpuBackend::create(1);
  EXPECT_TRUE(cpu);
  ggml_gallocr_ptr memory(ggml_gallocr_new(ggml_backend_get_default_buffer_type((*cpu)->get())));
  EXPECT_TRUE(ggml_gallocr_alloc_graph(memory.get(), graph.graph));
  ggml_backend_tensor_set(x, heads.data(), 0, heads.size() * sizeof(float));
  ggml_backend_tensor_set(p, positions.data(), 0, positions.size() * sizeof(std::int32_t));
  if (f != nullptr) ggml_backend_tensor_set(f, factors.data(), 0, factors.size() * sizeof(float));
  EXPECT_TRUE((*cpu)->compute(graph.graph));
  std::vector<float> rotated(heads.size());
  ggml_backend_tensor_get(y, rotated.data(), 0, rotated.size() * sizeof(float));
  return rotated;
}

struct Scheme {
  const char* name;
  RopeArguments arguments;
  bool factors = false;
};

RopeArguments plain() { return {.n_rot = 64, .mode = GGML_ROPE_TYPE_NORMAL, .n_ctx_orig = 2048}; }
RopeArguments with(RopeArguments a, float scale, float ext, float attn) {
  a.freq_scale = scale;
  a.ext_factor = ext;
  a.attn_factor = attn;
  return a;
}
RopeArguments neox(RopeArguments a) {
  a.mode = GGML_ROPE_TYPE_NEOX;
  return a;
}

std::vector<Scheme> schemes() {
  return {{"norm", plain()},
          {"neox", neox(plain())},
          {"linear", with(plain(), 0.25f, 0.0f, 1.0f)},
          {"factors", plain(), true},
          {"factors_linear_neox", with(neox(plain()), 0.5f, 0.0f, 1.0f), true},
          {"yarn", with(plain(), 0.25f, 1.0f, 0.9f)},
          {"yarn_neox", with(neox(plain()), 0.125f, 1.0f, 1.2f)}};
}

class RopeScheme : public ::testing::TestWithParam<Scheme> {};

TEST_P(RopeScheme, RotatesAsGgmlDoes) {
  const RopeArguments& a = GetParam().arguments;
  std::vector<float> factors;
  if (GetParam().factors)
    for (int i = 0; i < a.n_rot / 2; ++i) factors.push_back(1.0f + 0.2f * static_cast<float>(i));
  const std::vector<std::int32_t> positions = {0, 1, 2, 17, 100, 1000, 8000};
  const auto head = static_cast<std::size_t>(a.n_rot);
  std::vector<float> heads(positions.size() * kHeads * head);
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (float& x : heads) x = uniform(random);

  const std::vector<float> expected = ggml_rotated(a, factors, heads, positions);
  const Rope rope = rope_of(a, factors);
  ASSERT_EQ(rope.pairs(), a.n_rot / 2);
  for (std::size_t i = 0; i < positions.size() * kHeads; ++i) {
    const std::span<float> own = std::span(heads).subspan(i * head, head);
    const std::vector<float> before(own.begin(), own.end());
    const std::int32_t position = positions[i / kHeads];
    rope.rotate(own, position);
    // ggml multiplies the angle up in f32, so its own error grows with the position.
    const float bound = 2e-6f + 3e-7f * static_cast<float>(position);
    for (std::size_t d = 0; d < head; ++d) EXPECT_NEAR(own[d], expected[i * head + d], bound) << position << ' ' << d;
    rope.unrotate(own, position);
    for (std::size_t d = 0; d < head; ++d) EXPECT_NEAR(own[d], before[d], 1e-6f);
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, RopeScheme, ::testing::ValuesIn(schemes()),
                         [](const auto& one) { return std::string(one.param.name); });

// Positions tell schemes apart by far more than the bound above.
TEST(RopeScheme, SchemesDiffer) {
  const std::vector<float> factors(32, 1.1f);
  const std::vector<Rope> ropes = {rope_of(plain(), {}), rope_of(with(plain(), 0.25f, 0.0f, 1.0f), {}),
                                   rope_of(with(plain(), 0.25f, 1.0f, 1.0f), {}), rope_of(plain(), factors)};
  for (std::size_t i = 0; i < ropes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      std::vector<float> a(64, 1.0f);
      std::vector<float> b(64, 1.0f);
      ropes[i].rotate(a, 17);
      ropes[j].rotate(b, 17);
      float most = 0.0f;
      for (std::size_t d = 0; d < a.size(); ++d) most = std::max(most, std::abs(a[d] - b[d]));
      EXPECT_GT(most, 0.1f) << i << ' ' << j;
    }
}

}  // namespace
}  // namespace qevict
