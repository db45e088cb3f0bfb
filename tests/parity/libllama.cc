#include "parity/libllama.h"

#include <stdexcept>

#include "llama-cpp.h"

namespace qevict {
namespace {

void quiet() {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
}

}  // namespace

struct LlamaSequence::State {
  llama_model_ptr model;
  llama_context_ptr context;
  std::size_t n_vocab = 0;
};

LlamaSequence::LlamaSequence(const std::string& path, const LlamaOptions& options) : state_(std::make_unique<State>()) {
  quiet();
  state_->model.reset(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
  if (!state_->model) throw std::runtime_error("libllama cannot load " + path);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(options.n_ctx);
  params.n_batch = params.n_ctx;
  params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = options.n_threads;
  params.flash_attn_type = options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = GGML_TYPE_F16;
  state_->context.reset(llama_init_from_model(state_->model.get(), params));
  if (!state_->context) throw std::runtime_error("libllama makes no context for " + path);
  state_->n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(state_->model.get())));
}

LlamaSequence::~LlamaSequence() = default;

std::vector<float> LlamaSequence::feed(std::span<const Token> tokens) {
  std::vector<llama_token> copy(tokens.begin(), tokens.end());
  const llama_batch batch = llama_batch_get_one(copy.data(), static_cast<std::int32_t>(copy.size()));
  if (llama_decode(state_->context.get(), batch) != 0) throw std::runtime_error("llama_decode failed");
  const float* logits = llama_get_logits_ith(state_->context.get(), -1);
  return {logits, logits + state_->n_vocab};
}

}  // namespace qevict
