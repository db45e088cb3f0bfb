#include "model/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "model/ggml_log.h"
#include "model/text.h"

namespace qevict {
namespace {

constexpr std::size_t kTensorAlignment = 32;  // ggml's CPU kernels expect it of mapped weights

std::size_t read_mapped(void* user, void* output, std::uint64_t offset, std::size_t count) {
  const std::span<const std::byte> bytes = static_cast<const MappedFile*>(user)->bytes();
  if (offset >= bytes.size()) return 0;
  count = std::min<std::size_t>(count, bytes.size() - offset);
  std::memcpy(output, bytes.data() + offset, count);
  return count;
}

// Bytes of a tensor of this shape, or nullopt if a dimension is not positive or the product overflows.
std::optional<std::size_t> checked_bytes(ggml_type type, const std::int64_t* ne) {
  const std::int64_t block = ggml_blck_size(type);
  if (block <= 0 || ne[0] <= 0 || ne[0] % block != 0) return std::nullopt;
  std::size_t bytes = ggml_type_size(type);
  for (int dim = 0; dim < GGML_MAX_DIMS; ++dim) {
    if (ne[dim] <= 0) return std::nullopt;
    const auto factor = static_cast<std::size_t>(dim == 0 ? ne[0] / block : ne[dim]);
    if (bytes > std::numeric_limits<std::size_t>::max() / 4 / factor) return std::nullopt;
    bytes *= factor;
  }
  return bytes;
}

std::optional<std::int64_t> integer_at(gguf_type type, const void* data, std::size_t index) {
  const auto at = [&]<class T>(T) { return static_cast<std::int64_t>(static_cast<const T*>(data)[index]); };
  switch (type) {
    case GGUF_TYPE_UINT8:
      return at(std::uint8_t{});
    case GGUF_TYPE_INT8:
      return at(std::int8_t{});
    case GGUF_TYPE_UINT16:
      return at(std::uint16_t{});
    case GGUF_TYPE_INT16:
      return at(std::int16_t{});
    case GGUF_TYPE_UINT32:
      return at(std::uint32_t{});
    case GGUF_TYPE_INT32:
      return at(std::int32_t{});
    case GGUF_TYPE_UINT64:
      return at(std::uint64_t{});
    case GGUF_TYPE_INT64:
      return at(std::int64_t{});
    default:
      return std::nullopt;
  }
}

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::open(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return io_error("cannot open model file '{}': {}", path, std::strerror(errno));
  struct stat status {};
  void* data = nullptr;
  Error error;
  if (::fstat(file, &status) != 0) {
    error = io_error("cannot read model file '{}': {}", path, std::strerror(errno));
  } else if (!S_ISREG(status.st_mode)) {
    error = io_error("model file '{}' is not a regular file", path);
  } else if (status.st_size == 0) {
    error = io_error("model file '{}' is empty", path);
  } else {
    data = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) {
      data = nullptr;
      error = io_error("cannot map model file '{}': {}", path, std::strerror(errno));
    }
  }
  ::close(file);
  if (data == nullptr) return error;
  return std::unique_ptr<MappedFile>(
      new MappedFile(static_cast<std::byte*>(data), static_cast<std::size_t>(status.st_size)));
}

MappedFile::~MappedFile() { ::munmap(data_, size_); }

void MappedFile::drop(std::size_t offset, std::size_t count) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = (offset + page - 1) / page * page;
  const std::size_t last = (offset + count) / page * page;
  if (first < last) ::madvise(data_ + first, last - first, MADV_DONTNEED);
}

Result<GgufFile::Shard> GgufFile::open_shard(const std::string& path) {
  route_llama_log();
  auto file = MappedFile::open(path);
  if (!file) return std::move(file).error();
  const std::span<const std::byte> bytes = (*file)->bytes();
  if (bytes.size() < 4) return io_error("model file '{}' is cut: {} bytes, a GGUF header has 24", path, bytes.size());
  if (std::memcmp(bytes.data(), "GGUF", 4) != 0)
    return io_error("'{}' is not a GGUF model: its first four bytes are not 'GGUF'", path);
  static_cast<void>(take_log_errors());
  gguf_context_ptr meta(gguf_init_from_callback(&read_mapped, file->get(), 0, bytes.size(), {true, nullptr}));
  if (!meta) return io_error("model file '{}' is cut or damaged: {}", path, take_log_errors());
  return Shard{std::move(*file), std::move(meta)};
}

Result<void> GgufFile::add_tensors(const std::string& path, std::size_t shard) {
  const gguf_context* meta = shards_[shard].meta.get();
  const std::size_t file_bytes = shards_[shard].file->bytes().size();
  const std::size_t start = gguf_get_data_offset(meta);
  if (gguf_get_alignment(meta) % kTensorAlignment != 0)
    return unsupported("model file '{}' aligns its tensors to {} bytes; supported: multiples of {}", path,
                       gguf_get_alignment(meta), kTensorAlignment);
  for (std::int64_t id = 0; id < gguf_get_n_tensors(meta); ++id) {
    TensorEntry entry;
    entry.name = gguf_get_tensor_name(meta, id);
    entry.type = gguf_get_tensor_type(meta, id);
    std::memcpy(entry.ne, gguf_get_tensor_ne(meta, id), sizeof entry.ne);
    const std::optional<std::size_t> bytes = checked_bytes(entry.type, entry.ne);
    if (!bytes)
      return io_error("model file '{}' is damaged: tensor '{}' has the impossible shape {} x {} x {} x {} of type {}",
                      path, entry.name, entry.ne[0], entry.ne[1], entry.ne[2], entry.ne[3], ggml_type_name(entry.type));
    entry.shard = shard;
    entry.bytes = *bytes;
    const std::size_t offset = gguf_get_tensor_offset(meta, id);
    if (start > file_bytes || offset > file_bytes - start || entry.bytes > file_bytes - start - offset)
      return io_error("model file '{}' is cut or damaged: tensor '{}' ends at byte {}, the file at byte {}", path,
                      entry.name, static_cast<double>(start) + offset + entry.bytes, file_bytes);
    entry.offset = start + offset;
    if (!by_name_.emplace(entry.name, tensors_.size()).second)
      return io_error("model file '{}' is damaged: tensor '{}' appears in two shards", path, entry.name);
    tensors_.push_back(std::move(entry));
  }
  return {};
}

Result<void> GgufFile::add_other_shards() {
  const auto count = integer("split.count");
  const auto number = integer("split.no");
  if (!count) return count.error();
  if (!number) return number.error();
  const std::int64_t n_shards = count->value_or(1);
  if (n_shards <= 1) return {};
  constexpr std::int64_t kMaxShards = 10000;
  if (n_shards > kMaxShards) return io_error("model file '{}' is damaged: split.count is {}", path_, n_shards);
  const std::int64_t own = number->value_or(0);
  // llama.cpp's naming: model-00001-of-00003.gguf.
  const std::string suffix = fmt::format("-{:05}-of-{:05}.gguf", own + 1, n_shards);
  if (own != 0)
    return invalid("'{}' is shard {} of a model of {}: name the first shard, ...-00001-of-{:05}.gguf", path_, own + 1,
                   n_shards, n_shards);
  if (!path_.ends_with(suffix))
    return io_error("model file '{}' is the first of {} shards: its name must end in '{}' so the others can be found",
                    path_, n_shards, suffix);
  const std::string stem = path_.substr(0, path_.size() - suffix.size());
  for (std::int64_t index = 1; index < n_shards; ++index) {
    const std::string path = fmt::format("{}-{:05}-of-{:05}.gguf", stem, index + 1, n_shards);
    auto shard = open_shard(path);
    if (!shard)
      return Error{shard.error().kind,
                   fmt::format("{} (shard {} of {} of '{}')", shard.error().message, index + 1, n_shards, path_)};
    shards_.push_back(std::move(*shard));
    if (auto added = add_tensors(path, static_cast<std::size_t>(index)); !added) return added;
  }
  const auto total = integer("split.tensors.count");
  if (!total) return total.error();
  if (total->has_value() && **total != static_cast<std::int64_t>(tensors_.size()))
    return io_error("model '{}' is incomplete: its {} shards hold {} tensors, split.tensors.count says {}", path_,
                    n_shards, tensors_.size(), **total);
  return {};
}

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  std::unique_ptr<GgufFile> model(new GgufFile(path));
  auto first = open_shard(path);
  if (!first) return std::move(first).error();
  model->shards_.push_back(std::move(*first));
  if (auto added = model->add_tensors(path, 0); !added) return std::move(added).error();
  if (auto added = model->add_other_shards(); !added) return std::move(added).error();
  return model;
}

const TensorEntry* GgufFile::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

Error GgufFile::wrong_type(std::int64_t id, std::string_view expected) const {
  const gguf_type type = gguf_get_kv_type(meta(), id);
  const bool is_array = type == GGUF_TYPE_ARRAY;
  return io_error("model file '{}' is damaged: key '{}' has type {}{}, expected {}", path_, gguf_get_key(meta(), id),
                  is_array ? "array of " : "", gguf_type_name(is_array ? gguf_get_arr_type(meta(), id) : type),
                  expected);
}

bool GgufFile::has(std::string_view key) const { return gguf_find_key(meta(), std::string(key).c_str()) >= 0; }

Result<std::optional<std::vector<std::int64_t>>> GgufFile::integers(std::string_view key) const {
  const std::int64_t id = gguf_find_key(meta(), std::string(key).c_str());
  if (id < 0) return std::optional<std::vector<std::int64_t>>();
  const bool is_array = gguf_get_kv_type(meta(), id) == GGUF_TYPE_ARRAY;
  const gguf_type type = is_array ? gguf_get_arr_type(meta(), id) : gguf_get_kv_type(meta(), id);
  constexpr std::string_view expected = "an integer";
  if (type == GGUF_TYPE_STRING) return wrong_type(id, expected);
  const std::size_t count = is_array ? gguf_get_arr_n(meta(), id) : 1;
  std::vector<std::int64_t> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const void* data = is_array ? gguf_get_arr_data(meta(), id) : gguf_get_val_data(meta(), id);
    const std::optional<std::int64_t> value = integer_at(type, data, i);
    if (!value) return wrong_type(id, expected);
    values[i] = *value;
  }
  return std::optional(std::move(values));
}

Result<std::optional<std::int64_t>> GgufFile::integer(std::string_view key) const {
  const std::int64_t id = gguf_find_key(meta(), std::string(key).c_str());
  if (id < 0) return std::optional<std::int64_t>();
  if (gguf_get_kv_type(meta(), id) == GGUF_TYPE_ARRAY) return wrong_type(id, "an integer");
  auto values = integers(key);
  if (!values) return std::move(values).error();
  return std::optional((*values)->front());
}

Result<std::optional<double>> GgufFile::real(std::string_view key) const {
  const std::int64_t id = gguf_find_key(meta(), std::string(key).c_str());
  if (id < 0) return std::optional<double>();
  switch (gguf_get_kv_type(meta(), id)) {
    case GGUF_TYPE_FLOAT32:
      return std::optional<double>(gguf_get_val_f32(meta(), id));
    case GGUF_TYPE_FLOAT64:
      return std::optional(gguf_get_val_f64(meta(), id));
    default:
      return wrong_type(id, "a floating-point number");
  }
}

Result<std::optional<bool>> GgufFile::boolean(std::string_view key) const {
  const std::int64_t id = gguf_find_key(meta(), std::string(key).c_str());
  if (id < 0) return std::optional<bool>();
  if (gguf_get_kv_type(meta(), id) != GGUF_TYPE_BOOL) return wrong_type(id, "true or false");
  return std::optional(gguf_get_val_bool(meta(), id));
}

Result<std::optional<std::string>> GgufFile::text(std::string_view key) const {
  const std::int64_t id = gguf_find_key(meta(), std::string(key).c_str());
  if (id < 0) return std::optional<std::string>();
  if (gguf_get_kv_type(meta(), id) != GGUF_TYPE_STRING) return wrong_type(id, "a string");
  return std::optional(std::string(gguf_get_val_str(meta(), id)));
}

Result<std::optional<std::vector<std::string_view>>> GgufFile::texts(std::string_view key) const {
  const std::int64_t id = gguf_find_key(meta(), std::string(key).c_str());
  if (id < 0) return std::optional<std::vector<std::string_view>>();
  if (gguf_get_kv_type(meta(), id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(meta(), id) != GGUF_TYPE_STRING)
    return wrong_type(id, "an array of strings");
  std::vector<std::string_view> values(gguf_get_arr_n(meta(), id));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = gguf_get_arr_str(meta(), id, i);
  return std::optional(std::move(values));
}

}  // namespace qevict
