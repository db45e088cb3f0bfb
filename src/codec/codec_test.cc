// What every row of codecs() must hold, and the exact bytes of the built-in ones.
#include "codec/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "codec/hadamard.h"

namespace qevict {
namespace {

using Floats = std::vector<float>;

TEST(QBytes1, EveryCell) {
  struct Cell {
    int dim;
    const char* codec;
    std::size_t bytes, head_bytes;
  };
  const Cell cells[] = {
      {64, "int2", 544, 0},      {64, "int4", 800, 0},      {64, "k2v2", 272, 384},    {64, "k3v2", 336, 384},
      {64, "k3v3", 400, 384},    {64, "k4v4", 528, 384},    {80, "int2", 672, 0},      {80, "int4", 992, 0},
      {80, "k2v2", 336, 480},    {80, "k3v2", 416, 480},    {80, "k3v3", 496, 480},    {80, "k4v4", 656, 480},
      {96, "int2", 800, 0},      {96, "int4", 1184, 0},     {96, "k2v2", 400, 576},    {96, "k3v2", 496, 576},
      {96, "k3v3", 592, 576},    {96, "k4v4", 784, 576},    {128, "int2", 1056, 0},    {128, "int4", 1568, 0},
      {128, "k2v2", 528, 768},   {128, "k3v2", 656, 768},   {128, "k3v3", 784, 768},   {128, "k4v4", 1040, 768},
      {256, "int2", 2080, 0},    {256, "int4", 3104, 0},    {256, "k2v2", 1040, 1536}, {256, "k3v2", 1296, 1536},
      {256, "k3v3", 1552, 1536}, {256, "k4v4", 2064, 1536},
  };
  for (const Cell& cell : cells) {
    const WindowShape shape{8, cell.dim, cell.dim};
    const CodecRow* row = find_codec(cell.codec);
    ASSERT_NE(row, nullptr) << cell.codec;
    EXPECT_EQ(row->window_bytes(shape), cell.bytes) << cell.codec << " " << cell.dim;
    EXPECT_EQ(row->head_bytes(shape), cell.head_bytes) << cell.codec << " " << cell.dim;
  }
}

// The parts of the examples' sums: keys alone and values alone.
TEST(QBytes1, KeysAndValuesApart) {
  const auto bytes = [](const char* codec, int tokens, int key_dim, int value_dim) {
    return find_codec(codec)->window_bytes({tokens, key_dim, value_dim});
  };
  for (const int dim : {64, 80, 96, 128, 256}) {
    const auto d = static_cast<std::size_t>(dim);
    const auto key_growth = [&](const char* codec) {
      return bytes(codec, 8, 2 * dim, dim) - bytes(codec, 8, dim, dim);
    };
    EXPECT_EQ(key_growth("int2"), 6 * d);  // 8*D*2/8 codes + 4*D of scales and zeros
    EXPECT_EQ(key_growth("int4"), 8 * d);
    EXPECT_EQ(key_growth("k3v2"), 3 * d);
    EXPECT_EQ(key_growth("k4v4"), 4 * d);
  }
  EXPECT_EQ(bytes("int2", 32, 64, 64), 2u * 32 * 64 / 4 + 4 * 64 + 32 * 4);
  EXPECT_EQ(bytes("k3v2", 16, 64, 64), 2u * 336);
  EXPECT_EQ(bytes("k3v2", 4, 4, 8), 4u * 4 * 3 / 8 + 4 * 8 * 2 / 8 + 8);
}

TEST(Codecs, NamesAreUniqueAndFound) {
  std::set<std::string_view> names;
  for (const CodecRow& row : codecs()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(find_codec(row.name), &row);
    EXPECT_FALSE(row.summary.empty());
    EXPECT_FALSE(row.source.empty());
  }
  EXPECT_EQ(find_codec("int3"), nullptr);
  EXPECT_EQ(find_codec(""), nullptr);
}

TEST(Codecs, TheFamilyIsComplete) {
  for (int x = 2; x <= 4; ++x)
    for (int y = 2; y <= 4; ++y) {
      const CodecRow* row = find_codec("k" + std::to_string(x) + "v" + std::to_string(y));
      ASSERT_NE(row, nullptr);
      EXPECT_EQ(row->key_bits, x);
      EXPECT_EQ(row->value_bits, y);
      for (const int dim : {64, 80, 96, 128, 256})
        EXPECT_EQ(row->window_bytes({8, dim, dim}), static_cast<std::size_t>((x + y) * dim + 16));
    }
}

using Cells = std::vector<std::string>;

// Table rows of docs/formats.md whose first cell is a codec's name.
std::vector<Cells> documented_rows() {
  const std::filesystem::path source = __FILE__;
  std::ifstream page(source.parent_path() / "../../docs/formats.md");
  EXPECT_TRUE(page.is_open());
  std::vector<Cells> rows;
  for (std::string line; std::getline(page, line);) {
    std::istringstream cells(line);
    Cells row;
    for (std::string cell; std::getline(cells, cell, '|');) {
      const auto first = cell.find_first_not_of(' ');
      row.push_back(first == std::string::npos ? "" : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
    }
    if (row.size() > 1 && find_codec(row[1]) != nullptr) rows.push_back(row);
  }
  return rows;
}

// `| name | T | formula | bytes at D = 64 | 80 | 96 | 128 | 256 | ...` for every codec; "-" where it does not take the
// shape.
TEST(Codecs, TheDocumentedSizesAreTheCodecs) {
  std::map<std::string, Cells> documented;
  for (const Cells& row : documented_rows())
    if (row.size() == 10) documented[row[1]] = row;
  for (const CodecRow& row : codecs()) {
    const Cells& cells = documented[std::string(row.name)];
    ASSERT_EQ(cells.size(), 10u) << row.name;
    const int tokens = std::stoi(cells[2]);
    int cell = 4;
    for (const int dim : {64, 80, 96, 128, 256}) {
      const WindowShape shape{tokens, dim, dim};
      EXPECT_EQ(cells[cell++], row.supports(shape) ? std::to_string(row.window_bytes(shape)) : "-")
          << row.name << " " << dim;
    }
  }
}

// `| name | keys or values | token | channel | code | byte: hexadecimal, ... |`: elsewhere than in these bytes the
// record does not depend on that code. Put into a record of other codes, they change what the codec decodes there (in
// rotated values: in that token) and nowhere else.
TEST(Codecs, TheDocumentedBitsAreTheCodecs) {
  int examples = 0;
  for (const Cells& row : documented_rows()) {
    if (row.size() != 7 || (row[2] != "keys" && row[2] != "values")) continue;
    ++examples;
    const CodecRow& codec = *find_codec(row[1]);
    const bool keys = row[2] == "keys";
    const int token = std::stoi(row[3]), channel = std::stoi(row[4]), code = std::stoi(row[5]);
    const WindowShape shape{codec.window_tokens, 64, 64};
    Rng rng(6);
    const std::size_t n = static_cast<std::size_t>(shape.tokens) * 64;
    Floats k(n), v(n);
    for (Floats* x : {&k, &v})
      for (float& value : *x) value = static_cast<float>(rng.normal());
    std::vector<std::byte> head(codec.head_bytes(shape)), record(codec.window_bytes(shape));
    if (!head.empty()) codec.estimate_head(shape, k, v, head);
    ASSERT_TRUE(codec.encode(shape, k, v, head, record));
    Floats before_k(n), before_v(n), after_k(n), after_v(n);
    codec.decode(shape, record, head, before_k, before_v);
    std::istringstream bytes(row[6]);
    int at = 0, ones = 0;
    for (unsigned value = 0; bytes >> at && bytes.ignore(1, ':') && bytes >> std::hex >> value; bytes >> std::dec) {
      ASSERT_LT(at, static_cast<int>(record.size()));
      record[at] ^= std::byte{static_cast<unsigned char>(value)};
      ones += std::popcount(value);
      bytes.ignore(1, ',');
    }
    EXPECT_EQ(ones, std::popcount(static_cast<unsigned>(code))) << row[1] << " " << row[6];
    codec.decode(shape, record, head, after_k, after_v);
    const bool spread = !keys && row[1].front() == 'k' && row[1] != "kivi-2" && row[1] != "kivi-4";
    for (int i = 0; i < static_cast<int>(n); ++i) {
      const bool here = spread ? i / 64 == token : i == token * 64 + channel;
      if (!spread || !here) {
        EXPECT_EQ(after_k[i] != before_k[i], keys && here) << row[1] << " " << row[2] << " " << i;
        EXPECT_EQ(after_v[i] != before_v[i], !keys && here) << row[1] << " " << row[2] << " " << i;
      }
    }
    // In rotated values the change is the channel's column of the rotation: as large everywhere, with its signs.
    if (spread) {
      Floats change(64), column(64);
      for (int d = 0; d < 64; ++d) change[d] = after_v[token * 64 + d] - before_v[token * 64 + d];
      column[channel] = 1;
      unrotate_values(column, rotation_signs(64));
      for (int d = 0; d < 64; ++d)
        EXPECT_NEAR(change[d] / change[0], column[d] / column[0], 1e-2) << row[1] << " " << d;
    }
  }
  EXPECT_GE(examples, 10);
}

// Keys with channel biases, as models have them.
struct Data {
  WindowShape shape;
  Floats keys, values;  // [tokens][dim] of n_windows windows
  Data(Rng& rng, WindowShape s, int n_windows) : shape(s) {
    Floats bias(s.key_dim);
    for (float& b : bias) b = 3 * static_cast<float>(rng.normal());
    keys.resize(n_windows * s.tokens * s.key_dim);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = bias[i % s.key_dim] + static_cast<float>(rng.normal());
    values.resize(n_windows * s.tokens * s.value_dim);
    for (float& value : values) value = 0.5f * static_cast<float>(rng.normal());
  }
  std::span<const float> window_keys(int w) const {
    return std::span(keys).subspan(w * shape.tokens * shape.key_dim, shape.tokens * shape.key_dim);
  }
  std::span<const float> window_values(int w) const {
    return std::span(values).subspan(w * shape.tokens * shape.value_dim, shape.tokens * shape.value_dim);
  }
};

struct Coded {
  std::vector<std::byte> head, record;
  Floats keys, values;
};

std::vector<std::byte> frozen_head(const CodecRow& row, const Data& data) {
  std::vector<std::byte> head(row.head_bytes(data.shape));
  if (!head.empty()) row.estimate_head(data.shape, data.keys, data.values, head);
  return head;
}

Coded coded(const CodecRow& row, const Data& data, int window) {
  Coded out{frozen_head(row, data), std::vector<std::byte>(row.window_bytes(data.shape), std::byte{0xa5}), {}, {}};
  EXPECT_TRUE(row.encode(data.shape, data.window_keys(window), data.window_values(window), out.head, out.record));
  out.keys.resize(data.window_keys(window).size());
  out.values.resize(data.window_values(window).size());
  row.decode(data.shape, out.record, out.head, out.keys, out.values);
  return out;
}

// Σ (x - y)² / Σ (x - mean of the channel)², the share of the energy that is lost.
double relative_error(std::span<const float> x, std::span<const float> y, int dim) {
  double error = 0, energy = 0;
  for (int d = 0; d < dim; ++d) {
    double mean = 0;
    for (std::size_t i = d; i < x.size(); i += dim) mean += x[i] / static_cast<double>(x.size() / dim);
    for (std::size_t i = d; i < x.size(); i += dim) {
      error += (x[i] - y[i]) * (x[i] - y[i]);
      energy += (x[i] - mean) * (x[i] - mean);
    }
  }
  return error / energy;
}

class EveryCodec : public testing::TestWithParam<const CodecRow*> {};

const WindowShape kShapes[] = {{8, 64, 64},  {8, 80, 80}, {8, 96, 96},   {8, 128, 128}, {8, 256, 256}, {16, 64, 64},
                               {32, 64, 64}, {1, 64, 64}, {3, 96, 32},   {64, 128, 96}, {8, 192, 128}, {4, 4, 4},
                               {8, 8, 4},    {12, 6, 10}, {100, 64, 64}, {40, 64, 32},  {5, 96, 96}};

std::vector<WindowShape> shapes_of(const CodecRow& row) {
  std::vector<WindowShape> shapes;
  for (const WindowShape& shape : kShapes)
    if (row.supports(shape)) shapes.push_back(shape);
  EXPECT_GE(shapes.size(), 2u);
  return shapes;
}

// For tests that try every element.
WindowShape smallest_shape(const CodecRow& row) {
  for (const WindowShape& shape :
       {WindowShape{8, 8, 8}, WindowShape{8, 32, 32}, WindowShape{8, 64, 64}, WindowShape{10, 8, 8}})
    if (row.supports(shape)) return shape;
  return {32, 32, 32};
}

TEST_P(EveryCodec, DecodesToFiniteNumbersNearTheInput) {
  Rng rng(1);
  for (const WindowShape& shape : shapes_of(*GetParam())) {
    const Data data(rng, shape, 16);
    Floats keys, values;
    for (int w = 0; w < 16; ++w) {
      const Coded out = coded(*GetParam(), data, w);
      keys.insert(keys.end(), out.keys.begin(), out.keys.end());
      values.insert(values.end(), out.values.begin(), out.values.end());
    }
    for (const float key : keys) ASSERT_TRUE(std::isfinite(key));
    for (const float value : values) ASSERT_TRUE(std::isfinite(value));
    // NormalFloat's four levels lose .32 of a normal channel cut at 0.5 % on each side.
    EXPECT_LT(relative_error(data.keys, keys, shape.key_dim), GetParam()->name == "nuq2" ? 0.35 : 0.25);
    EXPECT_LT(relative_error(data.values, values, shape.value_dim), 0.45);
  }
}

TEST_P(EveryCodec, WritesEveryByteOfTheRecordTheSameWayTwice) {
  Rng rng(2);
  for (const WindowShape& shape : shapes_of(*GetParam())) {
    const Data data(rng, shape, 2);
    const auto head = frozen_head(*GetParam(), data);
    std::vector<std::byte> first(GetParam()->window_bytes(shape), std::byte{0x00});
    std::vector<std::byte> second(first.size(), std::byte{0xff});
    ASSERT_TRUE(GetParam()->encode(shape, data.window_keys(1), data.window_values(1), head, first));
    ASSERT_TRUE(GetParam()->encode(shape, data.window_keys(1), data.window_values(1), head, second));
    EXPECT_EQ(first, second);
  }
}

TEST_P(EveryCodec, AWindowThatCanBeCutIsItsBlocks) {
  const CodecRow& codec = *GetParam();
  if (codec.cut == nullptr) return;
  Rng rng(31);
  for (const WindowShape& shape : {WindowShape{32, 64, 64}, {16, 80, 96}, {24, 128, 64}, {12, 64, 64}}) {
    const WindowShape block{8, shape.key_dim, shape.value_dim};
    const Coded whole = coded(codec, Data(rng, shape, 1), 0);
    std::vector<std::byte> part(codec.window_bytes(block));
    Floats keys(static_cast<std::size_t>(8 * shape.key_dim)), values(static_cast<std::size_t>(8 * shape.value_dim));
    for (std::size_t i = 0; 8 * (i + 1) <= static_cast<std::size_t>(shape.tokens); ++i) {
      codec.cut(shape, whole.record, static_cast<int>(8 * i), part);
      codec.decode(block, part, whole.head, keys, values);
      EXPECT_TRUE(std::ranges::equal(keys, std::span(whole.keys).subspan(i * keys.size(), keys.size())));
      EXPECT_TRUE(std::ranges::equal(values, std::span(whole.values).subspan(i * values.size(), values.size())));
    }
  }
}

// A codec that ignored one token or channel would pass a loose error bound; moving any element far must show.
TEST_P(EveryCodec, EveryElementCounts) {
  Rng rng(3);
  const WindowShape shape = smallest_shape(*GetParam());
  Data data(rng, shape, 8);
  const Coded before = coded(*GetParam(), data, 0);
  const auto head = before.head;
  const std::size_t n = before.keys.size();
  for (std::size_t i = 0; i<n; i += n> 64 ? 7 : 1) {
    Floats keys(data.window_keys(0).begin(), data.window_keys(0).end());
    Floats values(data.window_values(0).begin(), data.window_values(0).end());
    keys[i] += keys[i] > 0 ? -8.0f : 8.0f;
    values[i] += values[i] > 0 ? -4.0f : 4.0f;
    std::vector<std::byte> record(before.record.size());
    ASSERT_TRUE(GetParam()->encode(shape, keys, values, head, record));
    Floats key_back(n), value_back(n);
    GetParam()->decode(shape, record, head, key_back, value_back);
    EXPECT_GT(std::abs(key_back[i] - before.keys[i]), 2.0f) << i;
    EXPECT_GT(std::abs(value_back[i] - before.values[i]), 1.0f) << i;
  }
}

TEST_P(EveryCodec, RefusesNonFiniteInput) {
  Rng rng(4);
  const WindowShape shape = smallest_shape(*GetParam());
  const Data data(rng, shape, 2);
  const auto head = frozen_head(*GetParam(), data);
  std::vector<std::byte> record(GetParam()->window_bytes(shape));
  const std::size_t n = data.window_keys(0).size();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
    for (std::size_t at = 0; at<n; at += n> 64 ? 7 : 1) {
      Floats broken(data.window_keys(0).begin(), data.window_keys(0).end());
      broken[at] = bad;
      EXPECT_FALSE(GetParam()->encode(shape, broken, data.window_values(0), head, record));
      EXPECT_FALSE(GetParam()->encode(shape, data.window_keys(0), broken, head, record));
    }
}

// Keys of a model in f16 reach 65504; taking the rotation off can add a factor of sqrt(2).
TEST_P(EveryCodec, ExtremesOfHalfPrecisionStayFinite) {
  const WindowShape shape = smallest_shape(*GetParam());
  const std::size_t n = static_cast<std::size_t>(shape.tokens) * shape.key_dim;
  for (const float size : {92600.0f, 65504.0f, 0x1p-14f, 0x1p-24f, 0.0f}) {
    Floats keys(n), values(n);
    for (std::size_t i = 0; i < n; ++i) keys[i] = values[i] = i % 3 == 0 ? -size : size;
    std::vector<std::byte> head(GetParam()->head_bytes(shape)), record(GetParam()->window_bytes(shape));
    if (!head.empty()) GetParam()->estimate_head(shape, keys, values, head);
    ASSERT_TRUE(GetParam()->encode(shape, keys, values, head, record)) << size;
    Floats key_back(n), value_back(n);
    GetParam()->decode(shape, record, head, key_back, value_back);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_TRUE(std::isfinite(key_back[i])) << size;
      EXPECT_TRUE(std::isfinite(value_back[i])) << size;
    }
  }
}

TEST_P(EveryCodec, SaysInWordsWhatItNeeds) {
  EXPECT_FALSE(GetParam()->needs.empty());
  EXPECT_FALSE(GetParam()->supports({0, 64, 64}));
  EXPECT_FALSE(GetParam()->supports({8, 0, 64}));
  EXPECT_FALSE(GetParam()->supports({GetParam()->window_tokens, 64, 63}));
  EXPECT_TRUE(GetParam()->supports({GetParam()->window_tokens, 64, 64}));
}

// encode() is encode_with() of an empty side, and a side that a codec says it uses has its place in the record.
TEST_P(EveryCodec, TheSideIsUsedWhereTheRowSaysSo) {
  const CodecRow& row = *GetParam();
  EXPECT_EQ(row.encode_with != nullptr, row.uses_scores || row.uses_value_ranges);
  if (row.encode_with == nullptr) return;
  Rng rng(7);
  const WindowShape shape{row.window_tokens, 64, 64};
  const Data data(rng, shape, 2);
  const auto head = frozen_head(row, data);
  const auto record_of = [&](const TokenSide& side) {
    std::vector<std::byte> record(row.window_bytes(shape));
    EXPECT_TRUE(row.encode_with(shape, data.window_keys(0), data.window_values(0), side, head, record));
    return record;
  };
  const auto plain = record_of({});
  EXPECT_EQ(plain, coded(row, data, 0).record);
  Floats scores, ranges;
  for (int t = 0; t < shape.tokens; ++t) {
    scores.push_back(static_cast<float>(rng.uniform()));
    ranges.insert(ranges.end(), {-0.2f, 0.7f});
  }
  EXPECT_EQ(record_of({.scores = scores}) != plain, row.uses_scores);
  EXPECT_EQ(record_of({.value_ranges = ranges}) != plain, row.uses_value_ranges);
  scores[3] = std::numeric_limits<float>::quiet_NaN();
  ranges[7] = std::numeric_limits<float>::infinity();
  std::vector<std::byte> record(row.window_bytes(shape));
  EXPECT_EQ(row.encode_with(shape, data.window_keys(0), data.window_values(0), {.scores = scores}, head, record),
            !row.uses_scores);
  EXPECT_EQ(row.encode_with(shape, data.window_keys(0), data.window_values(0), {.value_ranges = ranges}, head, record),
            !row.uses_value_ranges);
}

std::vector<const CodecRow*> every_row() {
  std::vector<const CodecRow*> rows;
  for (const CodecRow& row : codecs()) rows.push_back(&row);
  return rows;
}
INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, testing::ValuesIn(every_row()), [](const auto& test) {
  std::string name(test.param->name);
  std::ranges::replace(name, '-', '_');
  return name;
});

// Lost energy of normal data: qevict-examples.md A16 for infinitely long tokens; 128 channels do 2 to 5 % better, since
// each token is normalised by its own rms.
TEST(Codecs, ErrorFallsWithBits) {
  Rng rng(5);
  const Data data(rng, {8, 128, 128}, 64);
  const auto errors = [&data](const char* name) {
    Floats keys, values;
    for (int w = 0; w < 64; ++w) {
      const Coded out = coded(*find_codec(name), data, w);
      keys.insert(keys.end(), out.keys.begin(), out.keys.end());
      values.insert(values.end(), out.values.begin(), out.values.end());
    }
    return std::pair(relative_error(data.keys, keys, 128), relative_error(data.values, values, 128));
  };
  const double expected[] = {0.117 + 2.8e-4, 0.035 + 2.8e-4, 0.0095 + 2.8e-4};
  for (int bits = 2; bits <= 4; ++bits) {
    const std::string name = "k" + std::to_string(bits) + "v" + std::to_string(bits);
    const auto [keys, values] = errors(name.c_str());
    EXPECT_NEAR(keys, expected[bits - 2], 0.06 * expected[bits - 2]) << name;
    EXPECT_NEAR(values, expected[bits - 2], 0.06 * expected[bits - 2]) << name;
  }
  EXPECT_LT(errors("int4").first, errors("int2").first / 10);
  EXPECT_LT(errors("int4").second, errors("int2").second / 10);
}

}  // namespace
}  // namespace qevict
