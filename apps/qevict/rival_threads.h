// Threads for ggml graphs that are not ours, set up as llama-bench sets them up.
#pragma once

#include "ggml-backend.h"

namespace qevict::app {

class RivalThreads {
 public:
  explicit RivalThreads(int n_threads);
  ~RivalThreads();
  RivalThreads(const RivalThreads&) = delete;
  RivalThreads& operator=(const RivalThreads&) = delete;

  ggml_threadpool* get() const { return pool_; }  // null: ggml makes its own

 private:
  ggml_threadpool* pool_ = nullptr;
};

// A symbol of the CPU backend; ggml may have loaded it at run time.
void* cpu_symbol(const char* name);

}  // namespace qevict::app
