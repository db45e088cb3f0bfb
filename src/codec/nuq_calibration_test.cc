#include "codec/nuq_calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/rng.h"
#include "codec/record.h"

namespace qevict {
namespace {

namespace fs = std::filesystem;

TEST(NuqHistogram, TablesOfNormalDataAreLloydAndMaxs) {
  Rng rng(1);
  NuqHistogram histogram;
  for (int i = 0; i < 400'000; ++i) histogram.add(static_cast<float>(rng.normal() / 8));
  const std::vector<float> two = histogram.levels(2), three = histogram.levels(3), four = histogram.levels(4);
  const double expected_two[] = {.4528, 1.510}, expected_three[] = {.2451, .7560, 1.344, 2.152};
  ASSERT_EQ(two.size(), 4u);
  ASSERT_EQ(three.size(), 8u);
  ASSERT_EQ(four.size(), 16u);
  for (std::size_t i = 0; i < 2; ++i)
    for (const double sign : {-1.0, 1.0}) EXPECT_NEAR(8 * two[sign < 0 ? 1 - i : 2 + i], sign * expected_two[i], .01);
  for (std::size_t i = 0; i < 4; ++i)
    for (const double sign : {-1.0, 1.0})
      EXPECT_NEAR(8 * three[sign < 0 ? 3 - i : 4 + i], sign * expected_three[i], .02);
  EXPECT_TRUE(std::ranges::is_sorted(four));
  EXPECT_EQ(four, histogram.levels(4));
}

TEST(NuqHistogram, FewPlacesAreTheLevels) {
  NuqHistogram histogram;
  for (const float x : {-1.0f, -.25f, .5f, 1.0f, 7.0f})
    for (int i = 0; i < 10; ++i) histogram.add(x);
  const std::vector<float> levels = histogram.levels(2);
  EXPECT_EQ(levels, (std::vector<float>{-1, -.25f, .5f, 1}));
}

NuqCalibration example() {
  NuqCalibration calibration{{"tiny", 2, 3, 8, 16, 12345}, {}};
  for (int i = 0; i < 2; ++i) {
    NuqLayer& layer = calibration.layers.emplace_back();
    for (int bits = 2; bits <= 4; ++bits)
      for (int level = 0; level < 1 << bits; ++level) {
        layer.key_levels[bits - 2].push_back(to_float(to_half(-1 + 1.9f * level / ((1 << bits) - 1))));
        layer.value_levels[bits - 2].push_back(to_float(to_half(-.8f + 1.6f * level / ((1 << bits) - 1) + .1f * i)));
      }
    for (int c = 0; c < 3 * 8; ++c) layer.ranges.push_back(nuq_range(-1.0f - c - i, 2.0f * c));
  }
  return calibration;
}

class NuqFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* scratch = std::getenv("QEVICT_TEST_SCRATCH");
    folder_ = fs::path(scratch != nullptr ? scratch : fs::temp_directory_path().string()) / "nuq_calibration_test";
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    path_ = (folder_ / "tiny.nuq").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<char> bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put(const std::vector<char>& bytes) const {
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  // The message of a file that must be refused.
  std::string refusal(const NuqModel& model = example().model) const {
    const Result<NuqCalibration> read = read_nuq(path_, model);
    EXPECT_FALSE(read.ok());
    if (read) return "";
    EXPECT_EQ(read.error().message.find('\n'), std::string::npos);
    EXPECT_NE(read.error().message.find(path_), std::string::npos);
    return read.error().message;
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(NuqFile, ComesBackAsItWasWritten) {
  const NuqCalibration written = example();
  ASSERT_TRUE(write_nuq(written, path_).ok());
  // Head of 36 + name, per layer 2 x 28 levels and 24 channels, checksum.
  EXPECT_EQ(bytes().size(), 36u + 4 + 2 * (2 * 2 * 28 + 4 * 24) + 8);
  const Result<NuqCalibration> read = read_nuq(path_, written.model);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->model, written.model);
  for (const char* name : {"nuq2", "nuq3", "nuq4"}) {
    const CodecRow& codec = *find_codec(name);
    for (const int layer : {0, 1})
      for (const int head : {0, 1, 2}) {
        const std::vector<std::byte> data = read->head_data(codec, layer, head);
        EXPECT_EQ(data.size(), codec.head_bytes({32, 8, 16}));
        EXPECT_EQ(data, written.head_data(codec, layer, head));
      }
    EXPECT_NE(read->head_data(codec, 0, 0), read->head_data(codec, 0, 1));
    EXPECT_NE(read->head_data(codec, 0, 0), read->head_data(codec, 1, 0));
  }
  EXPECT_TRUE(read->head_data(*find_codec("k3v2"), 0, 0).empty());
}

TEST_F(NuqFile, HeadDataAreTheLayersTablesAndTheHeadsRanges) {
  const NuqCalibration calibration = example();
  const NuqLayout layout{{32, 8, 16}, 3};
  const std::vector<std::byte> data = calibration.head_data(*find_codec("nuq3"), 1, 2);
  const std::span<const std::byte> head = data;
  for (int c = 0; c < 8; ++c) {
    EXPECT_EQ(load_half(head.subspan(layout.offsets()), c), calibration.layers[1].ranges[16 + c].offset);
    EXPECT_EQ(load_half(head.subspan(layout.ranges()), c), calibration.layers[1].ranges[16 + c].range);
    EXPECT_EQ(to_float(load_half(head.subspan(layout.key_levels()), c)), calibration.layers[1].key_levels[1][c]);
    EXPECT_EQ(to_float(load_half(head.subspan(layout.value_levels()), c)), calibration.layers[1].value_levels[1][c]);
  }
}

TEST_F(NuqFile, BadFilesAreRefusedInOneLine) {
  EXPECT_NE(refusal().find("eval calibrate"), std::string::npos);  // missing
  ASSERT_TRUE(write_nuq(example(), path_).ok());
  EXPECT_NE(write_nuq(example(), path_).error().message.find("exists"), std::string::npos);
  const std::vector<char> good = bytes();
  for (std::size_t n = 0; n < good.size(); n += n < 60 ? 1 : 17) {
    put({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n)});
    EXPECT_NE(refusal().find(n < 5   ? "not a KVQuant calibration"
                             : n < 8 ? "version"
                                     : "cut or damaged"),
              std::string::npos)
        << n;
  }
  for (std::size_t at = 8; at < good.size(); at += 3) {
    std::vector<char> bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    put(bad);
    EXPECT_NE(refusal().find("cut or damaged"), std::string::npos) << at;
  }
  std::vector<char> longer = good;
  longer.push_back(0);
  put(longer);
  EXPECT_NE(refusal().find("cut or damaged"), std::string::npos);
  std::vector<char> newer = good;
  newer[7] = '2';
  put(newer);
  EXPECT_NE(refusal().find("version 002"), std::string::npos);
  put(good);
  NuqModel other = example().model;
  other.file_bytes = 1;
  EXPECT_NE(refusal(other).find("not of \"tiny\" (2 layers of 3 KV heads of 8 and 16, 1 bytes"), std::string::npos);
  other = example().model;
  other.name = "small";
  EXPECT_NE(refusal(other).find("\"small\""), std::string::npos);
  EXPECT_FALSE(write_nuq(example(), "/nonexistent/tiny.nuq").ok());
}

TEST(NuqPath, IsBesideTheModel) {
  EXPECT_EQ(nuq_path("dir/SmolLM2-135M-Instruct.Q4_1.gguf"), "dir/SmolLM2-135M-Instruct.Q4_1.nuq");
  EXPECT_EQ(nuq_path("model.nuq"), "model.nuq.nuq");
}

}  // namespace
}  // namespace qevict
