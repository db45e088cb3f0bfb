#include "rival_llama.h"

#include <algorithm>

#include "clock.h"
#include "llama-cpp.h"
#include "messages.h"
#include "rival_threads.h"

namespace qevict::app {
namespace {

constexpr int kBatch = 512;  // tokens of a matmul, llama-bench's default

ggml_type type_of(const std::string& name) {
  return name == "q8_0" ? GGML_TYPE_Q8_0 : name == "q4_0" ? GGML_TYPE_Q4_0 : GGML_TYPE_F16;
}

class LlamaEngine final : public BenchEngine {
 public:
  LlamaEngine(const RivalSpec& spec, std::size_t f16_per_token, std::size_t n_vocab, llama_context_ptr context)
      : f16_per_token_(f16_per_token),
        per_token_(f16_per_token / sizeof(ggml_fp16_t) * ggml_type_size(type_of(spec.kv_type)) /
                   static_cast<std::size_t>(ggml_blck_size(type_of(spec.kv_type)))),
        n_vocab_(n_vocab),
        context_(std::move(context)) {
    label_ = {.engine = "llama.cpp",
              .method = "full",
              .kv_type = spec.kv_type,
              .flash_attn = spec.flash_attention ? "on" : "off"};
  }

  const EngineLabel& label() const override { return label_; }
  bool goes_back() const override { return true; }

  // Keeps what the cache holds of these tokens and reads the rest.
  Result<std::optional<double>> fill(std::span<const Token> tokens, int, const BenchProgress& progress) override {
    const auto same = static_cast<std::size_t>(std::ranges::mismatch(held_, tokens).in1 - held_.begin());
    llama_memory_t memory = llama_get_memory(context_.get());
    if (same == 0 || !llama_memory_seq_rm(memory, 0, static_cast<llama_pos>(same), -1)) {
      llama_memory_clear(memory, false);
      held_.clear();
    }
    held_.resize(std::min(held_.size(), same));
    const auto start = Clock::now();
    const bool from_empty = held_.empty() && !tokens.empty();
    if (const Result<void> read = feed(tokens.subspan(held_.size()), progress); !read) return read.error();
    return from_empty ? std::optional<double>(ms_since(start)) : std::nullopt;
  }

  Result<PromptTimes> read_prompt(std::span<const Token> prompt, int, const BenchProgress& progress) override {
    const auto start = Clock::now();
    if (const Result<void> read = feed(prompt, progress); !read) return read.error();
    PromptTimes times = {.prefill_ms = ms_since(start)};
    const float* logits = llama_get_logits_ith(context_.get(), -1);
    likeliest_ = std::max_element(logits, logits + n_vocab_) - logits;
    times.ttft_ms = ms_since(start);
    return times;
  }

  Result<DecodeTimes> decode(std::span<const Token> steps, const BenchProgress& progress) override {
    DecodeTimes times;
    for (const Token token : steps) {
      llama_token copy = token;
      const auto start = Clock::now();
      const int status = llama_decode(context_.get(), llama_batch_get_one(&copy, 1));
      llama_synchronize(context_.get());
      times.step_ms.push_back(ms_since(start));
      if (status != 0) return failed(status);
      held_.push_back(token);
      if (!progress(static_cast<double>(times.step_ms.size()) / static_cast<double>(steps.size()))) {
        return Error{Error::Kind::interrupted, "interrupted"};
      }
    }
    return times;
  }

  void add_fields(Json& row) const override {
    const std::size_t bytes = held_.size() * per_token_;  // of the tokens it holds; it has allocated the whole context
    row["kv_bytes_peak"] = bytes;
    row["kv_bytes_final"] = bytes;
    row["kv_bytes_full"] = held_.size() * f16_per_token_;
    row["kv_bytes_allocated"] = llama_n_ctx(context_.get()) * per_token_;
    row["kv_ratio_peak"] =
        f16_per_token_ == 0 ? 0.0 : static_cast<double>(per_token_) / static_cast<double>(f16_per_token_);
    row["workspace_peak_bytes"] = nullptr;  // libllama does not tell
  }

 private:
  Result<void> feed(std::span<const Token> tokens, const BenchProgress& progress) {
    for (std::size_t at = 0; at < tokens.size();) {
      const std::span<const Token> batch = tokens.subspan(at, std::min<std::size_t>(kBatch, tokens.size() - at));
      batch_.assign(batch.begin(), batch.end());
      const int status =
          llama_decode(context_.get(), llama_batch_get_one(batch_.data(), static_cast<std::int32_t>(batch_.size())));
      llama_synchronize(context_.get());
      if (status != 0) return failed(status);
      held_.insert(held_.end(), batch.begin(), batch.end());
      at += batch.size();
      if (!progress(static_cast<double>(at) / static_cast<double>(tokens.size()))) {
        return Error{Error::Kind::interrupted, "interrupted"};
      }
    }
    return {};
  }

  Error failed(int status) const {
    return Error{Error::Kind::internal,
                 fmt::format("llama.cpp ({}, flash attention {}): llama_decode gave {} with {} tokens in the cache",
                             label_.kv_type, label_.flash_attn, status, held_.size())};
  }

  EngineLabel label_;
  std::size_t f16_per_token_;
  std::size_t per_token_;
  std::size_t n_vocab_;
  llama_context_ptr context_;
  std::vector<Token> held_;  // what the cache holds
  std::vector<llama_token> batch_;
  std::ptrdiff_t likeliest_ = 0;  // kept so that the search is not optimised away
};

}  // namespace

struct LlamaRival::State {
  explicit State(int threads) : n_threads(threads), pool(threads) {}
  int n_threads;
  RivalThreads pool;
  llama_model_ptr model;
};

LlamaRival::LlamaRival(std::unique_ptr<State> state) : state_(std::move(state)) {}
LlamaRival::~LlamaRival() = default;

Result<std::unique_ptr<LlamaRival>> LlamaRival::load(const std::string& model_path, int n_threads) {
  llama_backend_init();
  auto state = std::make_unique<State>(n_threads);
  llama_model_params params = llama_model_default_params();  // mapped, and repacked where ggml has a faster layout
  params.n_gpu_layers = 0;
  state->model.reset(llama_model_load_from_file(model_path.c_str(), params));
  if (!state->model) return io_error("llama.cpp cannot load {}", model_path);
  return std::unique_ptr<LlamaRival>(new LlamaRival(std::move(state)));
}

int LlamaRival::n_vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(state_->model.get())); }

Result<std::unique_ptr<BenchEngine>> LlamaRival::make_engine(const RivalSpec& spec, std::size_t kv_bytes_per_token,
                                                             int n_ctx) const {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(n_ctx);
  params.n_batch = params.n_ubatch = kBatch;
  params.n_threads = params.n_threads_batch = state_->n_threads;
  params.type_k = params.type_v = type_of(spec.kv_type);
  params.flash_attn_type = spec.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context_ptr context(llama_init_from_model(state_->model.get(), params));
  if (!context) {
    return Error{Error::Kind::unsupported,
                 fmt::format("llama.cpp makes no context of {} tokens with a cache of type {}, flash attention {}",
                             n_ctx, spec.kv_type, spec.flash_attention ? "on" : "off")};
  }
  if (state_->pool.get() != nullptr) llama_attach_threadpool(context.get(), state_->pool.get(), state_->pool.get());
  return std::unique_ptr<BenchEngine>(
      std::make_unique<LlamaEngine>(spec, kv_bytes_per_token, static_cast<std::size_t>(n_vocab()), std::move(context)));
}

}  // namespace qevict::app
