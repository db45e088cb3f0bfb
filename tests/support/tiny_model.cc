#include "support/tiny_model.h"

#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

#include "ggml-cpp.h"

namespace qevict::testing {
namespace {

class Writer {
 public:
  explicit Writer(const TinyModel& model)
      : model_(model), random_(model.seed), meta_(gguf_init_empty()), tensors_(ggml_init(memory(model))) {}

  void run(const std::string& path) {
    write_keys();
    write_vocabulary();
    write_tensors();
    if (model_.edit) model_.edit(meta_.get());
    if (!gguf_write_to_file(meta_.get(), path.c_str(), /*only_meta=*/false))
      throw std::runtime_error("cannot write " + path);
  }

 private:
  static ggml_init_params memory(const TinyModel& m) {
    const std::size_t width = static_cast<std::size_t>(m.n_heads * m.head_dim);
    const std::size_t layer = width * (4 * width + 3 * static_cast<std::size_t>(m.n_ff) + 64);
    const std::size_t values =
        static_cast<std::size_t>(m.n_layers) * layer + 2 * width * static_cast<std::size_t>(m.n_vocab);
    return {values * sizeof(float) + (std::size_t{1} << 20), nullptr, false};
  }

  std::string key(const char* name) const { return model_.architecture + "." + name; }
  void set(const char* name, int value) {
    gguf_set_val_u32(meta_.get(), key(name).c_str(), static_cast<std::uint32_t>(value));
  }
  void set(const char* name, float value) { gguf_set_val_f32(meta_.get(), key(name).c_str(), value); }

  void write_keys() {
    gguf_set_val_str(meta_.get(), "general.architecture", model_.architecture.c_str());
    gguf_set_val_str(meta_.get(), "general.name", "tiny");
    set("context_length", model_.n_ctx_train);
    set("embedding_length", width());
    set("block_count", model_.n_layers);
    set("feed_forward_length", model_.n_ff);
    set("attention.head_count", model_.n_heads);
    set("attention.head_count_kv", model_.n_kv_heads);
    set("attention.layer_norm_rms_epsilon", 1e-5f);
    set("rope.dimension_count", model_.head_dim);
    set("rope.freq_base", model_.architecture == "llama" ? 10000.0f : 1000000.0f);
    if (model_.scaling == RopeScaling::linear) {
      gguf_set_val_str(meta_.get(), key("rope.scaling.type").c_str(), "linear");
      set("rope.scaling.factor", 4.0f);
    }
    if (model_.scaling == RopeScaling::yarn) {
      gguf_set_val_str(meta_.get(), key("rope.scaling.type").c_str(), "yarn");
      set("rope.scaling.factor", 4.0f);
      set("rope.scaling.original_context_length", model_.n_ctx_train / 4);
      set("rope.scaling.attn_factor", 1.1f);
    }
  }

  void write_vocabulary() {
    enum { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types = {kUnknown, kControl, kControl};
    for (int byte = 0; byte < 256; ++byte) {
      char text[8];
      std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
      tokens.emplace_back(text);
      types.push_back(kByte);
    }
    for (const char* text : {"\xE2\x96\x81", "a", "b"}) tokens.emplace_back(text);  // U+2581 stands for a space
    while (static_cast<int>(tokens.size()) < model_.n_vocab) tokens.push_back("word" + std::to_string(tokens.size()));
    types.resize(tokens.size(), kNormal);
    const std::vector<float> scores(tokens.size(), -1.0f);
    std::vector<const char*> texts;
    for (const std::string& token : tokens) texts.push_back(token.c_str());
    gguf_context* meta = meta_.get();
    gguf_set_val_str(meta, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(meta, "tokenizer.ggml.tokens", texts.data(), texts.size());
    gguf_set_arr_data(meta, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
    gguf_set_arr_data(meta, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
    gguf_set_val_u32(meta, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(meta, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_val_u32(meta, "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_val_bool(meta, "tokenizer.ggml.add_bos_token", true);
    if (!model_.chat_template.empty()) gguf_set_val_str(meta, "tokenizer.chat_template", model_.chat_template.c_str());
  }

  ggml_type matrix_type() const {
    if (model_.matrices == "q8_0") return GGML_TYPE_Q8_0;
    if (model_.matrices == "q4_1") return GGML_TYPE_Q4_1;
    if (model_.matrices == "f32") return GGML_TYPE_F32;
    throw std::runtime_error("matrices of type " + model_.matrices);
  }

  int width() const { return model_.n_heads * model_.head_dim; }

  // Values mean + spread * N(0, 1); one-dimensional if rows is 0.
  void add(const std::string& name, int columns, int rows, float mean, float spread) {
    if (name == model_.without_tensor) return;
    const bool is_matrix = rows > 0;
    std::vector<float> values(static_cast<std::size_t>(columns) * static_cast<std::size_t>(is_matrix ? rows : 1));
    std::normal_distribution<float> normal;
    for (float& value : values) value = mean + spread * normal(random_);
    if (name == model_.transposed) std::swap(columns, rows);
    ggml_type type = is_matrix ? matrix_type() : GGML_TYPE_F32;
    if (name == model_.half_tensor) type = GGML_TYPE_F16;
    ggml_tensor* tensor = is_matrix ? ggml_new_tensor_2d(tensors_.get(), type, columns, rows)
                                    : ggml_new_tensor_1d(tensors_.get(), type, columns);
    ggml_quantize_chunk(type, values.data(), tensor->data, 0, ggml_nrows(tensor), tensor->ne[0], nullptr);
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(meta_.get(), tensor);
  }
  void add_matrix(const std::string& name, int n_in, int n_out) {
    add(name, n_in, n_out, 0.0f, 1.0f / std::sqrt(static_cast<float>(n_in)));
  }
  void add_norm(const std::string& name, int n) { add(name, n, 0, 1.0f, 0.1f); }
  void add_bias(const std::string& name, int n, float spread) { add(name, n, 0, 0.0f, spread); }

  void write_tensors() {
    add("token_embd.weight", width(), model_.n_vocab, 0.0f, 1.0f);
    add_norm("output_norm.weight", width());
    if (!model_.tied_head)
      add("output.weight", width(), model_.n_vocab, 0.0f, 2.0f / std::sqrt(static_cast<float>(width())));
    if (model_.scaling == RopeScaling::frequency_factors) write_frequency_factors();
    for (int layer = 0; layer < model_.n_layers; ++layer) write_layer("blk." + std::to_string(layer) + ".");
    if (!model_.extra_tensor.empty()) add(model_.extra_tensor, 32, 1, 0.0f, 1.0f);
  }

  void write_frequency_factors() {  // from 1 to 8, as Llama 3 has them
    const int pairs = model_.head_dim / 2;
    ggml_tensor* factors = ggml_new_tensor_1d(tensors_.get(), GGML_TYPE_F32, pairs);
    for (int i = 0; i < pairs; ++i)
      static_cast<float*>(factors->data)[i] = 1.0f + 7.0f * static_cast<float>(i) / static_cast<float>(pairs - 1);
    ggml_set_name(factors, "rope_freqs.weight");
    gguf_add_tensor(meta_.get(), factors);
  }

  void write_layer(const std::string& blk) {
    const int n_q = model_.n_heads * model_.head_dim;
    const int n_kv = model_.n_kv_heads * model_.head_dim;
    add_norm(blk + "attn_norm.weight", width());
    if (model_.fused_qkv) {
      add_matrix(blk + "attn_qkv.weight", width(), n_q + 2 * n_kv);
      if (model_.qkv_bias) add_bias(blk + "attn_qkv.bias", n_q + 2 * n_kv, 1.0f);
    } else {
      add_matrix(blk + "attn_q.weight", width(), n_q);
      add_matrix(blk + "attn_k.weight", width(), n_kv);
      add_matrix(blk + "attn_v.weight", width(), n_kv);
      if (model_.qkv_bias) {
        add_bias(blk + "attn_q.bias", n_q, 0.5f);
        add_bias(blk + "attn_k.bias", n_kv, 10.0f);
        add_bias(blk + "attn_v.bias", n_kv, 0.1f);
      }
    }
    if (model_.architecture == "qwen3") {
      add_norm(blk + "attn_q_norm.weight", model_.head_dim);
      add_norm(blk + "attn_k_norm.weight", model_.head_dim);
    }
    add_matrix(blk + "attn_output.weight", n_q, width());
    add_norm(blk + "ffn_norm.weight", width());
    add_matrix(blk + "ffn_gate.weight", width(), model_.n_ff);
    add_matrix(blk + "ffn_up.weight", width(), model_.n_ff);
    add_matrix(blk + "ffn_down.weight", model_.n_ff, width());
    if (model_.llama_bias) {
      add_bias(blk + "attn_output.bias", width(), 0.1f);
      add_bias(blk + "ffn_gate.bias", model_.n_ff, 0.1f);
      add_bias(blk + "ffn_up.bias", model_.n_ff, 0.1f);
      add_bias(blk + "ffn_down.bias", width(), 0.1f);
    }
  }

  const TinyModel& model_;
  std::mt19937 random_;
  gguf_context_ptr meta_;
  ggml_context_ptr tensors_;
};

}  // namespace

void TinyModel::write(const std::string& path) const { Writer(*this).run(path); }

}  // namespace qevict::testing
