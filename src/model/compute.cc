#include "model/compute.h"

#include "base/check.h"
#include "model/ggml_log.h"

namespace qevict {
namespace {

// Symbols of the CPU backend are looked up in its registry, since ggml may have loaded it at run time.
template <class Function>
Function cpu_function(ggml_backend_dev_t device, const char* name) {
  return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name));
}

}  // namespace

Result<std::unique_ptr<CpuBackend>> CpuBackend::create(int n_threads) {
  std::unique_ptr<CpuBackend> cpu(new CpuBackend());
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (device != nullptr) cpu->backend_.reset(ggml_backend_dev_init(device, nullptr));
  if (!cpu->backend_) return error_of(Error::Kind::internal, "cannot start ggml's CPU backend: {}", take_log_errors());
  if (const auto set = cpu_function<ggml_backend_set_n_threads_t>(device, "ggml_backend_set_n_threads"); set != nullptr)
    set(cpu->get(), n_threads);
  const auto create_threads =
      cpu_function<ggml_threadpool* (*)(ggml_threadpool_params*)>(device, "ggml_threadpool_new");
  const auto use_threads =
      cpu_function<void (*)(ggml_backend_t, ggml_threadpool*)>(device, "ggml_backend_cpu_set_threadpool");
  cpu->free_threads_ = cpu_function<void (*)(ggml_threadpool*)>(device, "ggml_threadpool_free");
  if (create_threads != nullptr && use_threads != nullptr && cpu->free_threads_ != nullptr) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    cpu->threads_ = create_threads(&params);
    if (cpu->threads_ == nullptr)
      return error_of(Error::Kind::internal, "cannot start {} threads: {}", n_threads, take_log_errors());
    use_threads(cpu->get(), cpu->threads_);
  }
  return cpu;
}

CpuBackend::~CpuBackend() {
  backend_.reset();
  if (threads_ != nullptr) free_threads_(threads_);
}

Result<void> CpuBackend::compute(ggml_cgraph* graph) const {
  return result_of(ggml_backend_graph_compute(get(), graph));
}

Result<void> CpuBackend::result_of(ggml_status status) {
  if (status == GGML_STATUS_SUCCESS) return {};
  return error_of(Error::Kind::internal, "ggml could not run a graph: {}. {}", ggml_status_to_string(status),
                  take_log_errors());
}

Graph Graph::with_room_for(std::size_t max_nodes) {
  Graph graph;
  graph.bytes = ggml_tensor_overhead() * max_nodes + ggml_graph_overhead_custom(max_nodes, false);
  graph.context.reset(ggml_init({graph.bytes, nullptr, true}));
  graph.graph = ggml_new_graph_custom(graph.context.get(), max_nodes, false);
  return graph;
}

ggml_tensor* new_input(ggml_context* context, ggml_type type, std::int64_t ne0, std::int64_t ne1, const char* name) {
  ggml_tensor* tensor = ggml_new_tensor_2d(context, type, ne0, ne1);
  ggml_set_input(tensor);
  ggml_set_name(tensor, name);
  return tensor;
}

}  // namespace qevict
