#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ggml.h"
#include "model/hparams.h"

namespace qevict {
namespace {

float yarn_scale(float factor) { return factor <= 1.0f ? 1.0f : 0.1f * std::log(factor) + 1.0f; }

// What ggml multiplies the rotation by: it adds YaRN's own term to attn_factor.
float magnitude_of(const RopeArguments& a) {
  return a.ext_factor == 0.0f ? a.attn_factor : a.attn_factor * (1.0f + 0.1f * std::log(1.0f / a.freq_scale));
}

}  // namespace

RopeArguments read_rope(Keys& keys, int head_dim, int n_ctx_train, bool neox) {
  const std::string& path = keys.file().path();
  RopeArguments a;
  a.mode = neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  a.n_rot = keys.integer("rope.dimension_count", 1, 1 << 20, head_dim);
  if (a.n_rot != head_dim)  // libllama refuses it too for these architectures
    keys.fail(
        unsupported("model '{}' rotates {} of {} channels of a head; supported: all of them", path, a.n_rot, head_dim));
  a.n_ctx_orig = keys.integer("rope.scaling.original_context_length", 0, 1 << 30, n_ctx_train);
  if (a.n_ctx_orig == 0) a.n_ctx_orig = n_ctx_train;
  a.freq_base = keys.real("rope.freq_base", 10000.0f);
  if (a.freq_base <= 1.0f)
    keys.fail(io_error("model file '{}' is damaged: rope.freq_base is {}, expected more than 1", path, a.freq_base));

  const std::string kind = keys.text("rope.scaling.type", "linear");
  if (kind != "none" && kind != "linear" && kind != "yarn")
    keys.fail(
        unsupported("model '{}' has RoPE scaling '{}'; supported: none, linear, yarn, frequency factors", path, kind));
  const bool new_key = keys.has("rope.scaling.factor");
  const float factor = keys.real(new_key ? "rope.scaling.factor" : "rope.scale_linear", 0.0f);
  if (factor < 0.0f) keys.fail(io_error("model file '{}' is damaged: the RoPE scaling factor is {}", path, factor));
  if (kind != "none" && factor > 0.0f) a.freq_scale = 1.0f / factor;
  if (kind == "yarn") {
    // libllama's own arithmetic: attn_factor cancels the term that ggml adds for ext_factor != 0. It reads the yarn_*
    // keys (ext_factor, beta_fast, beta_slow) for other architectures only, so they keep their defaults.
    const float scale = 1.0f / a.freq_scale;
    a.ext_factor = 1.0f;
    a.attn_factor = yarn_scale(scale) / (1.0f + 0.1f * std::log(scale));
  }
  a.attn_factor *= keys.real("rope.scaling.attn_factor", 1.0f);
  if (const float magnitude = magnitude_of(a); !(std::isfinite(magnitude) && magnitude > 0.0f))
    keys.fail(io_error("model file '{}' is damaged: RoPE scaling by {} gives magnitude {}", path, factor, magnitude));
  return a;
}

Rope rope_of(const RopeArguments& a, std::span<const float> factors) {
  Rope rope;
  rope.neox = a.mode == GGML_ROPE_TYPE_NEOX;
  rope.magnitude = magnitude_of(a);
  const int pairs = a.n_rot / 2;
  float ramp[2] = {0.0f, 0.0f};
  ggml_rope_yarn_corr_dims(a.n_rot, a.n_ctx_orig, a.freq_base, a.beta_fast, a.beta_slow, ramp);
  const float step = std::pow(a.freq_base, -2.0f / static_cast<float>(a.n_rot));
  float power = 1.0f;  // base^(-2 pair / n_rot), multiplied up as ggml does
  for (int pair = 0; pair < pairs; ++pair) {
    const float extrapolated = power / (factors.empty() ? 1.0f : factors[static_cast<std::size_t>(pair)]);
    const float y = (static_cast<float>(pair) - ramp[0]) / std::max(0.001f, ramp[1] - ramp[0]);
    const float mix = (1.0f - std::clamp(y, 0.0f, 1.0f)) * a.ext_factor;
    rope.frequency.push_back(a.freq_scale * extrapolated * (1.0f - mix) + extrapolated * mix);
    power *= step;
  }
  return rope;
}

}  // namespace qevict
