// ggml's CPU backend with its threads, and graphs that were built to be run more than once.
#pragma once

#include <memory>

#include "ggml-cpp.h"
#include "qevict/result.h"

namespace qevict {

// One per runner. Threads are set up as libllama's context sets them up.
class CpuBackend {
 public:
  static Result<std::unique_ptr<CpuBackend>> create(int n_threads);
  ~CpuBackend();
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  ggml_backend_t get() const { return backend_.get(); }
  Result<void> compute(ggml_cgraph* graph) const;
  static Result<void> result_of(ggml_status status);

 private:
  CpuBackend() = default;

  ggml_backend_ptr backend_;
  ggml_threadpool* threads_ = nullptr;
  void (*free_threads_)(ggml_threadpool*) = nullptr;
};

// A graph and the memory of its tensors' descriptions; buffers come from an allocator of the caller's.
struct Graph {
  ggml_context_ptr context;
  ggml_cgraph* graph = nullptr;
  std::size_t bytes = 0;

  // max_nodes: operations and inputs together.
  static Graph with_room_for(std::size_t max_nodes);
};

ggml_tensor* new_input(ggml_context* context, ggml_type type, std::int64_t ne0, std::int64_t ne1, const char* name);

}  // namespace qevict
