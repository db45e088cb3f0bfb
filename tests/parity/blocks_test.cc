// The codecs that carry llama.cpp's names must give ggml's own bytes and numbers.
#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "codec/block32.h"

namespace qevict {
namespace {

using Floats = std::vector<float>;

// Normal rows of many sizes, rows on ties, of equal magnitudes, of zeros of both signs, and of the smallest numbers.
Floats row_of(Rng& rng, int kind, int dim) {
  Floats row(dim);
  const double size = std::pow(10, rng.uniform() * 7 - 4);
  for (float& x : row) {
    double value = rng.normal() * size;
    if (kind == 1) value = std::round(rng.normal() * 4) / 4;
    if (kind == 2) value = rng.below(2) == 0 ? size : -size;
    if (kind == 3) value = rng.below(2) == 0 ? 0.0 : -0.0;
    if (kind == 4) value = std::abs(value) * 1e-8;
    x = static_cast<float>(value);
  }
  return row;
}

TEST(Blocks, AreGgmlsByteForByte) {
  struct Type {
    BlockType ours;
    ggml_type theirs;
  };
  Rng rng(1);
  for (const Type& type :
       {Type{BlockType::q8_0, GGML_TYPE_Q8_0}, {BlockType::q4_0, GGML_TYPE_Q4_0}, {BlockType::q4_1, GGML_TYPE_Q4_1}}) {
    const ggml_type_traits* traits = ggml_get_type_traits(type.theirs);
    for (int i = 0; i < 2000; ++i) {
      const int dim = 32 * rng.between(1, 8);
      const Floats row = row_of(rng, i % 5, dim);
      std::vector<std::byte> ours(row_bytes(type.ours, dim)), theirs(ggml_row_size(type.theirs, dim));
      ASSERT_EQ(ours.size(), theirs.size());
      encode_blocks(type.ours, row, ours);
      traits->from_float_ref(row.data(), theirs.data(), dim);
      ASSERT_EQ(ours, theirs) << traits->type_name << " row " << i;
      Floats back(dim), their_back(dim);
      decode_blocks(type.ours, ours, back);
      traits->to_float(theirs.data(), their_back.data(), dim);
      ASSERT_EQ(back, their_back) << traits->type_name << " row " << i;
    }
  }
}

}  // namespace
}  // namespace qevict
