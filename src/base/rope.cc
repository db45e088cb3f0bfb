#include "base/rope.h"

#include <cmath>

#include "base/check.h"

namespace qevict {
namespace {

void turn(const Rope& rope, std::span<float> head, double position, double sign, double scale) {
  QEVICT_CHECK(static_cast<int>(head.size()) >= 2 * rope.pairs(), "the rotated channels lie inside the head");
  for (int pair = 0; pair < rope.pairs(); ++pair) {
    const double angle = sign * position * static_cast<double>(rope.frequency[pair]);
    const double cosine = std::cos(angle) * scale;
    const double sine = std::sin(angle) * scale;
    float& a = head[rope.first(pair)];
    float& b = head[rope.second(pair)];
    const double old_a = a;
    const double old_b = b;
    a = static_cast<float>(old_a * cosine - old_b * sine);
    b = static_cast<float>(old_a * sine + old_b * cosine);
  }
}

}  // namespace

void Rope::rotate(std::span<float> head, double position) const { turn(*this, head, position, 1.0, magnitude); }

void Rope::unrotate(std::span<float> head, double position) const {
  turn(*this, head, position, -1.0, 1.0 / static_cast<double>(magnitude));
}

}  // namespace qevict
