// Decode kernels of every target against the double reference.
#include <gtest/gtest.h>

#include "codec/hadamard.h"
#include "kernels/attention.h"
#include "kernels/kernel_test_support.h"

namespace qevict {
namespace {

constexpr int kDims[] = {64, 80, 96, 128, 256};
constexpr int kGroups[] = {1, 3, 4, 7};

// f32 arithmetic throughout.
constexpr double kF32Error = 1e-5;

void expect_close(const TestPartial& got, const TestPartial& want, double tolerance) {
  EXPECT_LE(relative_error(got.output(), want.output()), tolerance);
  EXPECT_LE(relative_error(got.probabilities(), want.probabilities()), tolerance);
  for (int g = 0; g < got.shape.group; ++g) {
    EXPECT_NEAR(got.max[g], want.max[g], tolerance * std::max(1.0f, std::abs(want.max[g])));
    double sum = 0.0;
    for (int i = 0; i < got.n; ++i) sum += got.weights[static_cast<std::size_t>(g) * got.n + i];
    EXPECT_NEAR(got.denom[g], sum, 1e-5 * sum);
  }
}

TEST(DecodeF16, MatchesTheReferenceOnEveryTarget) {
  Rng rng(1);
  for (const int dim : kDims) {
    for (const int group : kGroups) {
      for (const int n : {1, 7, 8, 9, 15, 16, 17, 63, 65, 200}) {
        TestHead head;
        head.shape = {dim, dim, group};
        add_f16(head, n, n % 3 == 0 ? 8 : n % 3 == 1 ? 1000 : 5, n % 4, rng);
        const auto query = random_query(head.shape, 2.0, rng);
        const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
        const TestPartial want = reference_range(head, {0, n, false}, query, scale);
        for_each_target([&] { expect_close(decode_range(head, {0, n, false}, query, scale), want, kF32Error); });
      }
    }
  }
}

TEST(DecodeF16, DimensionsOfKeysAndValuesMayDiffer) {
  Rng rng(2);
  for (const auto& [kd, vd] : {std::pair{64, 128}, {192, 128}, {36, 20}, {3, 5}}) {
    TestHead head;
    head.shape = {kd, vd, 3};
    add_f16(head, 33, 10, 1, rng);
    const auto query = random_query(head.shape, 1.0, rng);
    const TestPartial want = reference_range(head, {4, 31, false}, query, 0.2f);
    for_each_target([&] { expect_close(decode_range(head, {4, 31, false}, query, 0.2f), want, kF32Error); });
  }
}

TEST(DecodeF16, DoesNotDependOnWhereRunsAreCut) {
  for_each_target([] {
    std::vector<float> first;
    for (const int run : {100, 64, 8, 7, 3, 1}) {
      Rng rng(3);
      TestHead head;
      head.shape = {64, 64, 3};
      add_f16(head, 100, run, 0, rng);
      // The same tokens, whatever the cut: drawn anew from a stream of their own.
      Rng values(4);
      for (const F16Run& r : head.runs) {
        for (int i = 0; i < r.n_tokens * 64; ++i) {
          const_cast<Half*>(r.keys)[i] = to_half(static_cast<float>(values.normal()));
          const_cast<Half*>(r.values)[i] = to_half(static_cast<float>(values.normal()));
        }
      }
      Rng q(5);
      const TestPartial result = decode_range(head, {3, 97, false}, random_query(head.shape, 1.5, q), 0.125f);
      if (first.empty()) first = result.acc;
      EXPECT_EQ(result.acc, first) << "runs of " << run;
    }
  });
}

TEST(DecodeF16, LargeLogitsStayFiniteAndRight) {
  Rng rng(6);
  TestHead head;
  head.shape = {64, 64, 3};
  add_f16(head, 50, 50, 0, rng);
  for (const double size : {1e2, 1e4, 1e5}) {  // logits up to about +-1e4, then 1e6 and more
    const auto query = random_query(head.shape, size, rng);
    const TestPartial want = reference_range(head, {0, 50, false}, query, 0.125f);
    for_each_target([&] {
      const TestPartial got = decode_range(head, {0, 50, false}, query, 0.125f);
      for (const float a : got.acc) EXPECT_TRUE(std::isfinite(a));
      for (const float w : got.weights) EXPECT_TRUE(w >= 0.0f && w <= 1.0f);
      // A logit's own rounding, eps * |logit|, is what its weight is uncertain by.
      expect_close(got, want, kF32Error + 1e-6 * size * 10);
    });
  }
}

TEST(Decode, AnEmptyRangeIsTheIdentity) {
  Rng rng(7);
  TestHead head;
  head.shape = {64, 64, 2};
  add_f16(head, 20, 20, 0, rng);
  const auto query = random_query(head.shape, 1.0, rng);
  for_each_target([&] {
    for (const bool codes : {false, true}) {
      TestPartial empty = decode_range(head, {0, 0, codes}, query, 0.125f);
      for (int g = 0; g < 2; ++g) {
        EXPECT_EQ(empty.max[g], -INFINITY);
        EXPECT_EQ(empty.denom[g], 0.0f);
      }
      for (const float a : empty.acc) EXPECT_EQ(a, 0.0f);
      TestPartial full = decode_range(head, {0, 20, false}, query, 0.125f);
      const std::vector<float> before = full.acc;
      merge_partial(head.shape, full.view(), empty.view());
      EXPECT_EQ(full.acc, before);
      merge_partial(head.shape, empty.view(), full.view());
      EXPECT_EQ(empty.acc, before);
    }
  });
}

TEST(Decode, MergingAnySplitGivesTheOnePassAnswer) {
  Rng rng(8);
  TestHead head;
  head.shape = {64, 64, 3};
  add_f16(head, 90, 8, 0, rng);
  const auto query = random_query(head.shape, 3.0, rng);
  for_each_target([&] {
    const TestPartial whole = decode_range(head, {0, 90, false}, query, 0.125f);
    for (int round = 0; round < 10; ++round) {
      TestPartial merged(head.shape, 0);
      for (int begin = 0; begin < 90;) {
        const int end = std::min(90, begin + 1 + static_cast<int>(rng.below(40)));
        TestPartial part = decode_range(head, {begin, end, false}, query, 0.125f);
        merge_partial(head.shape, merged.view(), part.view());
        begin = end;
      }
      EXPECT_LE(relative_error(merged.output(), whole.output()), 3e-6);
    }
  });
}

// Bounds of the kernels that read codes in rounded arithmetic: per logit, and per output channel. The 5 % rule against
// the codec's own error is tested in codes_error_test.cc.
constexpr double kLogitError = 1e-2;
constexpr double kOutputError = 1e-2;

void expect_codes_close(const TestPartial& got, const TestPartial& want) {
  expect_close(got, want, 5e-3);
  const WorstError worst = worst_error(got, want);
  EXPECT_LE(worst.logit, kLogitError);
  EXPECT_LE(worst.output, kOutputError);
}

// Small windows that the codec takes; 0 where it does not take the head size at all.
int window_tokens_for(const CodecRow& codec, int dim) {
  for (const int tokens : {8, 32, 10})
    if (codec.supports({tokens, dim, dim})) return tokens;
  return 0;
}

class DecodeCodes : public ::testing::TestWithParam<std::string_view> {};

TEST_P(DecodeCodes, MatchesTheReferenceOnEveryTarget) {
  const CodecRow& codec = *find_codec(GetParam());
  Rng rng(9);
  for (const int dim : kDims) {
    for (const int group : kGroups) {
      for (const int windows : {1, 2, 3, 17}) {
        const int window_tokens = window_tokens_for(codec, dim);
        if (window_tokens == 0) continue;
        TestHead head;
        head.shape = {dim, dim, group};
        head.rope = test_rope(dim / 2, windows % 2 == 1, windows == 3 ? 1.19f : 1.0f);
        add_codes(head, codec, windows, window_tokens, windows % 4, rng);
        const auto query = random_query(head.shape, 1.0, rng);
        const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
        const TokenRange range{windows > 2 ? window_tokens : 0, window_tokens * windows, true};
        const TestPartial want = reference_range(head, range, query, scale);
        for_each_target([&] { expect_codes_close(decode_range(head, range, query, scale), want); });
      }
    }
  }
}

// Windows that no tile of tokens divides, and keys and values of different sizes.
TEST_P(DecodeCodes, OddWindowsAndUnequalDims) {
  const CodecRow& codec = *find_codec(GetParam());
  Rng rng(13);
  for (const auto& [kd, vd] : {std::pair{64, 128}, {192, 64}, {96, 32}, {32, 96}}) {
    for (const int window_tokens : {1, 3, 5, 12}) {
      if (!codec.supports({window_tokens, kd, vd})) continue;
      for (const int windows : {1, 7, 29, 67}) {
        TestHead head;
        head.shape = {kd, vd, 1 + windows % 6};
        head.rope = test_rope(kd / 2, windows == 7);
        add_codes(head, codec, windows, window_tokens, windows % 5, rng);
        const auto query = random_query(head.shape, 1.0, rng);
        const TokenRange range{windows > 1 ? window_tokens : 0, window_tokens * windows, true};
        const TestPartial want = reference_range(head, range, query, 0.1f);
        for_each_target([&] { expect_codes_close(decode_range(head, range, query, 0.1f), want); });
      }
    }
  }
}

// 15 bits of queries and probabilities: far below what 8 bits of codes lose.
TEST(DecodeBlocks, AddLittleToEightBits) {
  Rng rng(14);
  for (const char* name : {"q8_0", "q4_0", "q4_1", "q8_0r", "q4_0r", "q4_1r"}) {
    for (const int group : kGroups) {
      TestHead head;
      head.shape = {128, 64, group};
      head.rope = test_rope(64, true);
      add_codes(head, *find_codec(name), 31, 3, 1, rng);
      const auto query = random_query(head.shape, 2.0, rng);
      const TokenRange range{3, 93, true};
      const TestPartial want = reference_range(head, range, query, 0.09f);
      for_each_target([&] { expect_close(decode_range(head, range, query, 0.09f), want, 2e-4); });
    }
  }
}

TEST_P(DecodeCodes, LargeWindowsPartialRopeAndFarPositions) {
  const CodecRow& codec = *find_codec(GetParam());
  Rng rng(10);
  for (const int window_tokens : {16, 32}) {
    if (!codec.supports({window_tokens, 64, 64})) continue;
    TestHead head;
    head.shape = {64, 64, 3};
    head.rope = test_rope(16, true);  // half of the channels
    add_codes(head, codec, 3, window_tokens, 0, rng);
    head.windows[1].position = 131064;
    head.windows[2].position = 5'000'000;
    const auto query = random_query(head.shape, 1.0, rng);
    const TokenRange range{0, 3 * window_tokens, true};
    const TestPartial want = reference_range(head, range, query, 0.125f);
    for_each_target([&] { expect_codes_close(decode_range(head, range, query, 0.125f), want); });
  }
}

// One wrong code of a key or a value must break the bounds above.
TEST_P(DecodeCodes, AOneCodeErrorIsCaught) {
  const CodecRow& codec = *find_codec(GetParam());
  Rng rng(11);
  TestHead head;
  head.shape = {64, 64, 1};
  head.rope = test_rope(32, true);
  const int tokens = window_tokens_for(codec, 64);
  add_codes(head, codec, 1, tokens, 0, rng);
  std::vector<float> query = random_query(head.shape, 1.0, rng);
  for (float& q : query) q = std::copysign(1.0f, q);  // so that no channel is silent
  const bool rotated = codec.name.ends_with('r');
  if (rotated) hadamard_blocks(query, 64);  // none of those that have codes
  const std::vector<float> flat(64);        // so that no token is silent
  const TokenRange range{0, tokens, true};
  const TestPartial logits = reference_range(head, range, query, 0.125f);
  const TestPartial means = reference_range(head, range, flat, 0.125f);
  struct Window {
    std::vector<float> keys, values;
  };
  const auto decoded = [&] {
    Window w{std::vector<float>(64 * tokens), std::vector<float>(64 * tokens)};
    codec.decode(head.window, head.records[0], head.head_data, w.keys, w.values);
    return w;
  };
  const auto largest_change = [](const std::vector<float>& a, const std::vector<float>& b) {
    float change = 0.0f;
    for (std::size_t i = 0; i < a.size(); ++i) change = std::max(change, std::abs(a[i] - b[i]));
    return change;
  };
  const Window before = decoded();
  const std::byte flip{static_cast<unsigned char>(codec.key_bits == 8 ? 32 : 2)};
  int wrong_keys = 0, wrong_values = 0, caught = 0;
  for (std::byte& byte : head.records[0]) {
    byte ^= flip;  // a bit of a code, or one of a scale, most of which move less than the thresholds here
    const Window after = decoded();
    const bool key = largest_change(before.keys, after.keys) > (rotated ? 0.2f / 8 : 0.2f);
    const bool value = largest_change(before.values, after.values) > 0.04f;
    wrong_keys += key;
    wrong_values += value;
    if (key || value) {
      for_each_target([&] {
        caught += key ? worst_error(decode_range(head, range, query, 0.125f), logits).logit > kLogitError
                      : worst_error(decode_range(head, range, flat, 0.125f), means).output > kOutputError;
      });
    }
    byte ^= flip;
  }
  EXPECT_GT(wrong_keys, 20);
  EXPECT_GT(wrong_values, 20);
  // A key may be turned so that the query hardly sees the change.
  EXPECT_GT(caught, 0.95 * (wrong_keys + wrong_values) * static_cast<double>(simd_targets().size()));
}

std::vector<std::string_view> codec_names() {
  std::vector<std::string_view> names;
  for (const CodecRow& codec : codecs()) names.push_back(codec.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, DecodeCodes, ::testing::ValuesIn(codec_names()),
                         [](const auto& parameter) { return test_name(parameter.param); });

}  // namespace
}  // namespace qevict
