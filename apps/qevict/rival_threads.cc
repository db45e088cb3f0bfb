#include "rival_threads.h"

namespace qevict::app {

void* cpu_symbol(const char* name) {
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  return device == nullptr ? nullptr : ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name);
}

RivalThreads::RivalThreads(int n_threads) {
  const auto create =
      reinterpret_cast<ggml_threadpool* (*)(ggml_threadpool_params*)>(cpu_symbol("ggml_threadpool_new"));
  if (create == nullptr) return;
  ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
  pool_ = create(&params);
}

RivalThreads::~RivalThreads() {
  if (pool_ == nullptr) return;
  reinterpret_cast<void (*)(ggml_threadpool*)>(cpu_symbol("ggml_threadpool_free"))(pool_);
}

}  // namespace qevict::app
