// A model and a session on it, made from the options.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "memory.h"
#include "options.h"
#include "qevict/qevict.h"

namespace qevict::app {

class Loaded {
 public:
  // Prints the settings to stderr if --print-settings asks for it.
  static Result<std::unique_ptr<Loaded>> open(Options& options, const GenerateOptions& generate);

  const Model& model() const { return model_; }
  Session& session() { return *session_; }
  const std::vector<Setting>& settings() const { return settings_; }
  // Peak resident bytes since the load above what was resident then; measured only for --json.
  std::size_t rss_peak_bytes() const { return memory_.above_start(); }

 private:
  explicit Loaded(Model model) : model_(std::move(model)) {}

  Model model_;
  std::optional<Session> session_;  // always there once open() has returned
  std::vector<Setting> settings_;
  MemoryMark memory_;
};

}  // namespace qevict::app
