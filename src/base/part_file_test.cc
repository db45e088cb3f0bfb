#include "base/part_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/check.h"

namespace qevict {
namespace {

class PartFile : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("qevict_part_file_" + std::to_string(::getpid()));
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  static void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path directory_;
};

TEST_F(PartFile, AppearsWhenFinished) {
  const Result<std::string> part = new_part_file(path("a"));
  ASSERT_TRUE(part);
  write(*part, "whole");
  EXPECT_FALSE(std::filesystem::exists(path("a")));
  ASSERT_TRUE(finish_part_file(*part, path("a")));
  EXPECT_EQ(read(path("a")), "whole");
  EXPECT_FALSE(std::filesystem::exists(*part));
}

TEST_F(PartFile, LeavesFilesOfOthersAlone) {
  write(path("a.part"), "precious");
  const Result<std::string> part = new_part_file(path("a"));
  ASSERT_TRUE(part);
  EXPECT_NE(*part, path("a.part"));
  write(path("a"), "came first");
  EXPECT_FALSE(finish_part_file(*part, path("a")));
  EXPECT_FALSE(std::filesystem::exists(*part));
  EXPECT_EQ(read(path("a.part")), "precious");
  EXPECT_EQ(read(path("a")), "came first");
}

TEST_F(PartFile, IsRemovedIfItWasNotWritten) {
  const Result<std::string> part = new_part_file(path("a"));
  ASSERT_TRUE(part);
  const Result<void> done = finish_part_file(*part, path("a"), io_error("full"));
  EXPECT_EQ(done.error().message, "full");
  EXPECT_FALSE(std::filesystem::exists(*part));
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

TEST_F(PartFile, ErrorsNameTheFile) {
  write(path("a"), "");
  EXPECT_EQ(new_part_file(path("a")).error().message, path("a") + " exists: give another name or remove it");
  EXPECT_EQ(new_part_file(path("none/b")).error().message,
            "cannot write " + path("none/b") + ": No such file or directory");
}

}  // namespace
}  // namespace qevict
