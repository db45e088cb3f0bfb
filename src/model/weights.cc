#include "model/weights.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/check.h"
#include "model/ggml_log.h"

namespace qevict {
namespace {

// The buffer types llama.cpp tries for a CPU weight, in its order: the CPU backend's extra ones, then the plain one.
std::vector<ggml_backend_buffer_type_t> buffer_types(ggml_backend_dev_t device) {
  std::vector<ggml_backend_buffer_type_t> types;
  const auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
  if (extra != nullptr)
    for (ggml_backend_buffer_type_t* type = extra(device); type != nullptr && *type != nullptr; ++type)
      types.push_back(*type);
  types.push_back(ggml_backend_dev_buffer_type(device));
  return types;
}

// The operation a weight takes part in, on a batch of 512 tokens.
ggml_tensor* sample_operation(ggml_context* context, ggml_tensor* weight, ggml_op op) {
  const auto like_weight = [&] { return ggml_new_tensor(context, GGML_TYPE_F32, GGML_MAX_DIMS, weight->ne); };
  switch (op) {
    case GGML_OP_GET_ROWS:
      return ggml_get_rows(context, weight, ggml_new_tensor_1d(context, GGML_TYPE_I32, 512));
    case GGML_OP_MUL_MAT:
      return ggml_mul_mat(context, weight, ggml_new_tensor_2d(context, GGML_TYPE_F32, weight->ne[0], 512));
    case GGML_OP_ADD:
      return ggml_add(context, like_weight(), weight);
    case GGML_OP_MUL:
      return ggml_mul(context, like_weight(), weight);
    default:
      throw_bug("op", "a weight is looked up, multiplied or added", __FILE__, __LINE__);
  }
}

// A type ggml can compute with: f32, or one it can turn into f32.
bool is_weight_type(ggml_type type) { return type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float != nullptr; }

}  // namespace

struct WeightLoader::Group {
  ggml_backend_buffer_type_t type;
  ggml_context_ptr context;
  std::vector<Matrix> matrices;                          // or what has no offsets
  std::vector<std::vector<const TensorEntry*>> entries;  // as matrices: what is stacked in each
  std::vector<ggml_backend_buffer_ptr> buffers;
};

WeightLoader::WeightLoader(const GgufFile& file)
    : file_(file), device_(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
  if (device_ == nullptr) {
    ggml_backend_load_all();
    device_ = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  }
  if (device_ == nullptr) {
    fail(error_of(Error::Kind::internal, "ggml has no CPU backend on this machine"));
  } else {
    candidates_ = buffer_types(device_);
  }
}

WeightLoader::~WeightLoader() = default;

WeightLoader::Group& WeightLoader::group_of(ggml_backend_buffer_type_t type) {
  for (const auto& group : groups_)
    if (group->type == type) return *group;
  const std::size_t n_tensors = file_.tensors().size() + 1;  // one more for the tied head
  ggml_context_ptr context(ggml_init({ggml_tensor_overhead() * n_tensors, nullptr, true}));
  groups_.push_back(std::make_unique<Group>(Group{type, std::move(context), {}, {}, {}}));
  return *groups_.back();
}

ggml_backend_buffer_type_t WeightLoader::choose(const TensorEntry& entry, ggml_type as, ggml_op op) const {
  for (ggml_backend_buffer_type_t type : candidates_) {
    const ggml_context_ptr scratch(ggml_init({ggml_tensor_overhead() * 8, nullptr, true}));
    ggml_tensor* weight = ggml_new_tensor(scratch.get(), as, GGML_MAX_DIMS, entry.ne);
    ggml_tensor* result = sample_operation(scratch.get(), weight, op);
    const ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(type, 0));  // carries the type alone
    weight->buffer = empty.get();
    if (ggml_backend_dev_supports_op(device_, result)) return type;
  }
  return nullptr;
}

ggml_tensor* WeightLoader::new_offsets(std::int64_t n_in, std::int64_t n_out) {
  if (!offsets_) offsets_.reset(ggml_init({ggml_tensor_overhead() * (file_.tensors().size() + 1), nullptr, true}));
  return ggml_new_tensor_2d(offsets_.get(), GGML_TYPE_F32, n_out, n_in / ggml_blck_size(GGML_TYPE_Q4_1));
}

WeightLoader::Placement WeightLoader::placement_of(const TensorEntry& entry, ggml_op op) const {
  ggml_backend_buffer_type_t buffers = choose(entry, entry.type, op);
  if (op == GGML_OP_MUL_MAT && entry.type == GGML_TYPE_Q4_1 && buffers == candidates_.back()) {
    ggml_backend_buffer_type_t faster = choose(entry, GGML_TYPE_Q4_0, op);
    if (faster != candidates_.back()) return {faster, GGML_TYPE_Q4_0};
  }
  return {buffers, entry.type};
}

Matrix WeightLoader::place(std::span<const TensorEntry* const> entries, ggml_op op) {
  const TensorEntry& first = *entries.front();
  const Placement placement = placement_of(first, op);
  if (placement.buffers == nullptr) {
    fail(unsupported("model '{}': ggml cannot use tensor '{}' of type {} on this CPU", file_.path(), first.name,
                     ggml_type_name(first.type)));
    return {};
  }
  Group& group = group_of(placement.buffers);
  for (std::size_t i = 0; i < group.matrices.size(); ++i)
    if (std::ranges::equal(group.entries[i], entries)) return group.matrices[i];  // a tied head that needs no copy
  std::int64_t n_out = 0;
  for (const TensorEntry* entry : entries) n_out += entry->ne[1];
  Matrix matrix{ggml_new_tensor_2d(group.context.get(), placement.type, first.ne[0], n_out)};
  ggml_set_name(matrix.weight, first.name.c_str());
  if (placement.type != first.type) matrix.offsets = new_offsets(first.ne[0], n_out);
  group.matrices.push_back(matrix);
  group.entries.emplace_back(entries.begin(), entries.end());
  return matrix;
}

const TensorEntry* WeightLoader::find(const std::string& name, std::int64_t ne0, std::int64_t ne1, ggml_op op,
                                      bool optional) {
  if (error_) return nullptr;
  const TensorEntry* entry = file_.find(name);
  if (entry == nullptr) {
    if (!optional) fail(io_error("model file '{}' is incomplete: tensor '{}' is missing", file_.path(), name));
    return nullptr;
  }
  used_.push_back(name);
  if (entry->ne[0] != ne0 || entry->ne[1] != ne1 || entry->ne[2] != 1 || entry->ne[3] != 1) {
    fail(io_error("model file '{}' is damaged: tensor '{}' is {} x {} x {} x {}, expected {} x {}", file_.path(), name,
                  entry->ne[0], entry->ne[1], entry->ne[2], entry->ne[3], ne0, ne1));
    return nullptr;
  }
  const bool is_matrix = op == GGML_OP_MUL_MAT || op == GGML_OP_GET_ROWS;
  if (is_matrix ? !is_weight_type(entry->type) : entry->type != GGML_TYPE_F32) {
    fail(unsupported("model '{}': tensor '{}' has type {}, expected {}", file_.path(), name,
                     ggml_type_name(entry->type), is_matrix ? "a floating-point or quantized type" : "f32"));
    return nullptr;
  }
  return entry;
}

ggml_tensor* WeightLoader::create(const std::string& name, std::int64_t ne0, std::int64_t ne1, ggml_op op,
                                  bool optional) {
  const TensorEntry* entry = find(name, ne0, ne1, op, optional);
  return entry == nullptr ? nullptr : place({&entry, 1}, op).weight;
}

Matrix WeightLoader::matrix(const std::string& name, std::int64_t n_in, std::int64_t n_out, bool optional) {
  const TensorEntry* entry = find(name, n_in, n_out, GGML_OP_MUL_MAT, optional);
  return entry == nullptr ? Matrix{} : place({&entry, 1}, GGML_OP_MUL_MAT);
}

Matrix WeightLoader::stacked(std::span<const std::string> names, std::int64_t n_in,
                             std::span<const std::int64_t> n_out) {
  if (error_) return {};
  std::vector<const TensorEntry*> entries;
  for (const std::string& name : names) {
    const TensorEntry* entry = file_.find(name);
    if (entry == nullptr || (!entries.empty() && entry->type != entries.front()->type)) return {};
    const ggml_backend_buffer_type_t buffers = placement_of(*entry, GGML_OP_MUL_MAT).buffers;
    if (buffers == nullptr || buffers == candidates_.back()) return {};
    entries.push_back(entry);
  }
  for (std::size_t i = 0; i < names.size(); ++i)
    if (find(names[i], n_in, n_out[i], GGML_OP_MUL_MAT, false) == nullptr) return {};
  return place(entries, GGML_OP_MUL_MAT);
}

ggml_tensor* WeightLoader::norm(const std::string& name, std::int64_t n) {
  return create(name, n, 1, GGML_OP_MUL, false);
}

ggml_tensor* WeightLoader::bias(const std::string& name, std::int64_t n) {
  return create(name, n, 1, GGML_OP_ADD, true);
}

ggml_tensor* WeightLoader::frequency_factors(const std::string& name, std::int64_t n) {
  return create(name, n, 1, GGML_OP_MUL, true);
}

ggml_tensor* WeightLoader::embedding(const std::string& name, std::int64_t n_embd, std::int64_t n_vocab) {
  return create(name, n_embd, n_vocab, GGML_OP_GET_ROWS, false);
}

Matrix WeightLoader::tied_head(ggml_tensor* embedding) {
  if (error_) return {};
  const TensorEntry* entry = file_.find(ggml_get_name(embedding));
  return place({&entry, 1}, GGML_OP_MUL_MAT);
}

void WeightLoader::refuse_unused() {
  std::sort(used_.begin(), used_.end());
  for (const TensorEntry& entry : file_.tensors())
    if (!std::binary_search(used_.begin(), used_.end(), entry.name))
      fail(unsupported("model '{}' has a tensor this architecture does not use here: '{}'", file_.path(), entry.name));
}

// Tensors stay where the file is mapped: one buffer per shard, over the whole mapping.
void WeightLoader::map_group(Group& group) {
  for (std::size_t shard = 0; shard < file_.n_shards(); ++shard) {
    const std::span<const std::byte> bytes = file_.shard(shard).bytes();
    auto* base = const_cast<std::byte*>(bytes.data());  // ggml only reads weights
    ggml_backend_buffer_ptr buffer(ggml_backend_dev_buffer_from_host_ptr(device_, base, bytes.size(), bytes.size()));
    if (!buffer) return fail(error_of(Error::Kind::internal, "ggml cannot use the mapped file '{}'", file_.path()));
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (std::size_t i = 0; i < group.matrices.size(); ++i) {
      const TensorEntry& entry = *group.entries[i].front();  // nothing stacked is mapped
      if (entry.shard != shard) continue;
      ggml_backend_tensor_alloc(buffer.get(), group.matrices[i].weight, base + entry.offset);
      mapped_bytes_ += entry.bytes;
    }
    group.buffers.push_back(std::move(buffer));
  }
}

namespace {

// All weights are read in every step, from end to end: with pages of 2 MiB a fifth faster on virtual machines, where
// looking up small ones is dear (docs/measurements.md). Before the first write, or there are pages already.
void ask_for_huge_pages([[maybe_unused]] void* base, [[maybe_unused]] std::size_t size) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t kHuge = std::uintptr_t{2} << 20;
  const auto first = (reinterpret_cast<std::uintptr_t>(base) + kHuge - 1) / kHuge * kHuge;
  const auto end = (reinterpret_cast<std::uintptr_t>(base) + size) / kHuge * kHuge;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);  // a wish: it may be refused
#endif
}

}  // namespace

void WeightLoader::copy_group(Group& group) {
  static_cast<void>(take_log_errors());
  ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(group.context.get(), group.type));
  if (!buffer)
    return fail(error_of(Error::Kind::internal, "no memory for the {} weights of '{}': {}",
                         ggml_backend_buft_name(group.type), file_.path(), take_log_errors()));
  ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  ask_for_huge_pages(ggml_backend_buffer_get_base(buffer.get()), ggml_backend_buffer_get_size(buffer.get()));
  std::vector<std::byte> stack, converted;
  for (std::size_t i = 0; i < group.matrices.size(); ++i) {
    const std::vector<const TensorEntry*>& entries = group.entries[i];
    std::span<const std::byte> data{file_.data(*entries.front()), entries.front()->bytes};
    if (entries.size() > 1) {
      stack.clear();
      for (const TensorEntry* entry : entries) {
        const std::byte* rows = file_.data(*entry);
        stack.insert(stack.end(), rows, rows + entry->bytes);
      }
      data = stack;
    }
    const Matrix& matrix = group.matrices[i];
    const std::size_t bytes = ggml_nbytes(matrix.weight);
    if (matrix.offsets != nullptr) {
      converted.resize(bytes);
      split_q4_1(data, matrix.weight->ne[0], matrix.weight->ne[1], converted,
                 {static_cast<float*>(matrix.offsets->data), static_cast<std::size_t>(ggml_nelements(matrix.offsets))});
      data = converted;
      repacked_bytes_ += ggml_nbytes(matrix.offsets);
    }
    ggml_backend_tensor_set(matrix.weight, data.data(), 0, bytes);
    for (const TensorEntry* entry : entries) file_.shard(entry->shard).drop(entry->offset, entry->bytes);
    repacked_bytes_ += bytes;
  }
  group.buffers.push_back(std::move(buffer));
}

void WeightLoader::load() {
  if (error_) return;
  if (offsets_) {
    offsets_buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(offsets_.get(), candidates_.back()));
    if (!offsets_buffer_)
      return fail(error_of(Error::Kind::internal, "no memory for the converted weights of '{}'", file_.path()));
    ggml_backend_buffer_set_usage(offsets_buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ask_for_huge_pages(ggml_backend_buffer_get_base(offsets_buffer_.get()),
                       ggml_backend_buffer_get_size(offsets_buffer_.get()));
  }
  for (const auto& group : groups_) {
    if (error_) return;
    if (group->type == candidates_.back()) {
      map_group(*group);
    } else {
      copy_group(*group);
    }
  }
}

std::vector<std::string> WeightLoader::repacked_buffers() const {
  std::vector<std::string> names;
  for (const auto& group : groups_)
    if (group->type != candidates_.back()) names.emplace_back(ggml_backend_buft_name(group->type));
  return names;
}

}  // namespace qevict
