// The rotary embedding of one model, as the cache needs it: to take the rotation of a stored key off before it is
// quantized, and to put it on again at the key's own position.
//
// RoPE, linear scaling, YaRN and Llama 3's frequency factors all rotate pair i at position p by the angle p *
// frequency[i] and multiply by `magnitude`; only the first 2 * pairs() channels of a head are rotated. So un-rotating
// is the transpose over magnitude^2.
#pragma once

#include <span>
#include <vector>

namespace qevict {

struct Rope {
  std::vector<float> frequency;  // [pairs], radians per position, scaling and frequency factors applied
  float magnitude = 1.0f;        // attention factor times YaRN's mscale
  bool neox = false;             // pairs (i, i + pairs) if true ("NeoX"), else (2i, 2i + 1) ("norm")

  int pairs() const { return static_cast<int>(frequency.size()); }
  // Channels of pair i.
  int first(int pair) const { return neox ? pair : 2 * pair; }
  int second(int pair) const { return neox ? pair + pairs() : 2 * pair + 1; }

  // In place, one head: head[head_dim], head_dim >= 2 * pairs().
  void rotate(std::span<float> head, double position) const;
  void unrotate(std::span<float> head, double position) const;
};

}  // namespace qevict
