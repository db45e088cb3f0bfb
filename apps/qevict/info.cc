// qevict info: what this build and machine can do, and what a model is.
#include <fmt/format.h>

#include <filesystem>

#include "commands.h"
#include "messages.h"
#include "summary.h"
#include "terminal.h"

namespace qevict::app {
namespace {

Json build_facts() {
  Json json;
  json["version"] = version();
  json["simd"] = simd_target();
  json["simd_available"] = simd_targets();
  json["architectures"] = supported_architectures();
  return json;
}

Json model_facts(const ModelInfo& info) {
  return {{"path", info.path},
          {"name", info.name},
          {"architecture", info.architecture},
          {"weights", info.weights},
          {"backend", info.backend},
          {"chat_template", info.chat_template},
          {"n_layers", info.n_layers},
          {"n_embd", info.n_embd},
          {"n_heads", info.n_heads},
          {"n_kv_heads", info.n_kv_heads},
          {"head_dim", info.head_dim},
          {"n_vocab", info.n_vocab},
          {"n_ctx_train", info.n_ctx_train},
          {"weight_bytes", info.weight_bytes},
          {"mapped_bytes", info.mapped_bytes},
          {"repacked_bytes", info.repacked_bytes},
          {"kv_bytes_per_token", info.kv_bytes_per_token}};
}

std::string build_text() {
  return fmt::format(
      "qevict         {}\n"
      "SIMD           {} (available: {})\n"
      "architectures  {}\n",
      version(), simd_target(), fmt::join(simd_targets(), ", "), fmt::join(supported_architectures(), ", "));
}

std::string model_text(const ModelInfo& info) {
  const std::size_t context_bytes = info.kv_bytes_per_token * static_cast<std::size_t>(info.n_ctx_train);
  return fmt::format(
      "model          {}{}\n"
      "  file         {}\n"
      "  weights      {}, {} ({} mapped, {} repacked)\n"
      "  backend      {}\n"
      "  shape        {} layers, {} wide, {} heads of {}, {} KV heads, {} tokens in the vocabulary\n"
      "  context      {} tokens\n"
      "  KV cache     {} a token in f16, {} for the whole context\n"
      "  template     {}\n",
      info.architecture, info.name.empty() ? "" : fmt::format(" \"{}\"", info.name), info.path, info.weights,
      bytes_text(info.weight_bytes), bytes_text(info.mapped_bytes), bytes_text(info.repacked_bytes), info.backend,
      info.n_layers, count_text(info.n_embd), info.n_heads, info.head_dim, info.n_kv_heads, count_text(info.n_vocab),
      count_text(info.n_ctx_train), bytes_text(info.kv_bytes_per_token), bytes_text(context_bytes), info.chat_template);
}

int run(Options& options) {
  // Without a model the build's own facts are still worth printing.
  std::error_code ignored;
  const bool has_model = !options.model.empty() || std::filesystem::exists(QEVICT_DEFAULT_MODEL, ignored);
  if (!has_model) options.model = "none";
  if (const Result<void> done = complete(options); !done) return fail(done.error());

  Json json = build_facts();
  std::string text = build_text();
  if (has_model) {
    const Result<Model> model = Model::load(options.model, {.chat_template = options.chat_template});
    if (!model) return fail(model.error());
    json["model"] = model_facts(model->info());
    text += model_text(model->info());
  } else {
    text += "model          none (-m FILE)\n";
  }
  Output output;
  output.write(options.json ? to_text(json, 2) + "\n" : text);
  const Result<void> written = output.status();
  return written ? kExitOk : fail(written.error());
}

}  // namespace

Command add_info(CLI::App& command, Options& options) {
  add_text(command, "-m,--model", "FILE", "GGUF file (default: SmolLM2-135M-Instruct, fetched at set-up)",
           [&](const std::string& text) { options.model = text; });
  add_text(command, "--chat-template", "NAME|JINJA", "in place of the model file's own template",
           [&](const std::string& text) { options.chat_template = text; });
  add_text(command, "--simd", "NAME", "instruction set of the attention kernels",
           [&](const std::string& text) { options.simd = text; });
  add_json_option(command, options);
  return [&options] { return run(options); };
}

}  // namespace qevict::app
