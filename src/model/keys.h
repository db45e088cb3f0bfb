// Reads the keys of one architecture ("llama.block_count") with ranges, remembering the first thing that was wrong, so
// that hyperparameters read as a list.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "model/gguf_file.h"

namespace qevict {

class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture) : file_(file), architecture_(std::move(architecture)) {}

  const GgufFile& file() const { return file_; }
  const std::string& architecture() const { return architecture_; }
  bool has(std::string_view suffix) const { return file_.has(full(suffix)); }
  // `fallback` absent: the key must be there. Values outside [low, high] are errors.
  int integer(std::string_view suffix, int low, int high, std::optional<int> fallback = {});
  // One number, or an array of equal ones per layer; layers that differ are refused by name.
  int per_layer(std::string_view suffix, int n_layers, int low, int high, std::optional<int> fallback = {});
  float real(std::string_view suffix, std::optional<float> fallback = {});
  std::string text(std::string_view suffix, std::string fallback);
  bool boolean(std::string_view suffix, bool fallback);

  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  std::string full(std::string_view suffix) const { return architecture_ + "." + std::string(suffix); }
  int checked(std::string_view suffix, std::int64_t value, int low, int high);

  const GgufFile& file_;
  std::string architecture_;
  std::optional<Error> error_;
};

}  // namespace qevict
