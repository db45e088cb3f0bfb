// llama.cpp as a rival of `qevict bench`: libllama in this process, on the same model file, as llama-bench drives it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench_engine.h"

namespace qevict::app {

struct RivalSpec {
  std::string kv_type = "f16";  // one of kRivalKvTypes
  bool flash_attention = true;

  bool operator==(const RivalSpec&) const = default;
};
inline constexpr std::string_view kRivalKvTypes[] = {"f16", "q8_0", "q4_0"};

// "llama.cpp:q8_0,llama.cpp:f16:nofa": a list of llama.cpp[:f16|q8_0|q4_0][:fa|nofa]. Without fa or nofa: both, but for
// a quantized cache fa only, since llama.cpp has no other.
Result<std::vector<RivalSpec>> parse_rivals(const std::string& text);

// The rival's own copy of the weights (mapped, or repacked by libllama) and its threads; engines share both.
class LlamaRival {
 public:
  static Result<std::unique_ptr<LlamaRival>> load(const std::string& model_path, int n_threads);
  ~LlamaRival();
  LlamaRival(const LlamaRival&) = delete;
  LlamaRival& operator=(const LlamaRival&) = delete;

  int n_vocab() const;
  // kv_bytes_per_token: of an f16 cache. The rival must outlive the engine.
  Result<std::unique_ptr<BenchEngine>> make_engine(const RivalSpec& spec, std::size_t kv_bytes_per_token,
                                                   int n_ctx) const;

 private:
  struct State;
  explicit LlamaRival(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace qevict::app
