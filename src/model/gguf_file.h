// One GGUF model on disk, read and checked before anything of it is used: a single file, or all shards of a split one.
//
// Every tensor named here lies wholly inside its file, so reading it cannot fault. Keys are read by type; a key of
// another type is an error, never ggml's abort. Owns the mappings; tensor data stays valid as long as this lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ggml-cpp.h"
#include "qevict/result.h"

namespace qevict {

// A file mapped read-only.
class MappedFile {
 public:
  static Result<std::unique_ptr<MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the kernel that these bytes are not needed any more (they were copied); they can still be read.
  void drop(std::size_t offset, std::size_t count) const;

 private:
  MappedFile(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  std::byte* data_;
  std::size_t size_;
};

struct TensorEntry {
  std::string name;
  ggml_type type = GGML_TYPE_F32;
  std::int64_t ne[GGML_MAX_DIMS] = {1, 1, 1, 1};
  std::size_t shard = 0;
  std::size_t offset = 0;  // from the start of the shard's file
  std::size_t bytes = 0;
};

class GgufFile {
 public:
  static Result<std::unique_ptr<GgufFile>> open(const std::string& path);

  const std::string& path() const { return path_; }
  std::size_t n_shards() const { return shards_.size(); }
  const MappedFile& shard(std::size_t index) const { return *shards_[index].file; }
  std::span<const TensorEntry> tensors() const { return tensors_; }
  const TensorEntry* find(std::string_view name) const;  // nullptr if there is none
  const std::byte* data(const TensorEntry& tensor) const { return shard(tensor.shard).bytes().data() + tensor.offset; }

  // The metadata of the first shard. Each returns nullopt where the key is missing, and an error where it has another
  // type. Integers of every width are read; arrays of integers too (a scalar is an array of one).
  bool has(std::string_view key) const;
  Result<std::optional<std::int64_t>> integer(std::string_view key) const;
  Result<std::optional<double>> real(std::string_view key) const;
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::optional<std::string>> text(std::string_view key) const;
  Result<std::optional<std::vector<std::int64_t>>> integers(std::string_view key) const;
  // Views into the file's metadata, valid as long as this lives.
  Result<std::optional<std::vector<std::string_view>>> texts(std::string_view key) const;

 private:
  struct Shard {
    std::unique_ptr<MappedFile> file;
    gguf_context_ptr meta;
  };

  explicit GgufFile(std::string path) : path_(std::move(path)) {}
  static Result<Shard> open_shard(const std::string& path);
  Result<void> add_tensors(const std::string& path, std::size_t shard);
  Result<void> add_other_shards();
  const gguf_context* meta() const { return shards_.front().meta.get(); }
  Error wrong_type(std::int64_t id, std::string_view expected) const;

  std::string path_;
  std::vector<Shard> shards_;
  std::vector<TensorEntry> tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace qevict
