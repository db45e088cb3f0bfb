// Small deterministic random numbers: the same stream on every machine and compiler, unlike <random>'s distributions.
// SplitMix64 (Steele, Lea, Flood 2014) is also where the rotation signs of codec/hadamard.h come from.
#pragma once

#include <cmath>
#include <cstdint>

namespace qevict {

class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

 private:
  std::uint64_t state_;
};

// For tests, synthetic data and sampling: draws built on SplitMix64.
class Rng {
 public:
  explicit constexpr Rng(std::uint64_t seed) : bits_(seed) {}

  constexpr std::uint64_t next() { return bits_.next(); }
  // [0, 1), in steps of 2^-53.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // 0 .. n-1; n >= 1. The bias is below n / 2^53.
  constexpr std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>(uniform() * static_cast<double>(n));
  }
  // lowest .. highest, both included.
  constexpr int between(int lowest, int highest) {
    return lowest + static_cast<int>(below(static_cast<std::uint64_t>(highest - lowest) + 1));
  }
  // Mean 0, deviation 1 (Box-Muller; the last digits depend on the C library's log and cos).
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

 private:
  SplitMix64 bits_;
};

}  // namespace qevict
