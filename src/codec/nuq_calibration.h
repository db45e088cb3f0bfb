// What KVQuant knows of a model beforehand: each key channel's range, and tables of levels for each layer. Made by
// `qevict eval calibrate`, kept in a file beside the model (docs/formats.md), turned into a head's frozen parameters.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codec/nuq.h"
#include "qevict/result.h"

namespace qevict {

// Which model a calibration is of.
struct NuqModel {
  std::string name;  // general.name of the file
  int n_layers = 0;
  int n_kv_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  std::uint64_t file_bytes = 0;
  friend bool operator==(const NuqModel&, const NuqModel&) = default;
};

struct NuqLayer {
  // Tables of 2, 3 and 4 bits: [bits - 2][2^bits], ascending, in [-1, 1].
  std::array<std::vector<float>, 3> key_levels, value_levels;
  std::vector<NuqRange> ranges;  // [n_kv_heads][key_dim]
};

struct NuqCalibration {
  NuqModel model;
  std::vector<NuqLayer> layers;  // [n_layers]

  // The frozen parameters of one head, [head_bytes] of the codec; empty if it is none of nuq2, nuq3 and nuq4.
  std::vector<std::byte> head_data(const CodecRow& codec, int layer, int kv_head) const;
};

// "dir/model.gguf" -> "dir/model.nuq".
std::string nuq_path(const std::string& model_path);
// Errors: the file exists; it cannot be written. It appears under its name only once it is whole.
Result<void> write_nuq(const NuqCalibration& calibration, const std::string& path);
// Errors: missing, no calibration, of another version, cut or damaged, of another model than `expected`.
Result<NuqCalibration> read_nuq(const std::string& path, const NuqModel& expected);

// Counts of normalised numbers, from which tables are made: k-means in one dimension with all weights equal.
class NuqHistogram {
 public:
  // x is clamped to [-1, 1].
  void add(float x);
  // 2^bits levels, ascending: Lloyd's iteration from equally spaced quantiles.  REQUIRES: something was added.
  std::vector<float> levels(int bits) const;

 private:
  static constexpr int kBins = 8192;
  std::vector<double> counts_ = std::vector<double>(kBins);
  std::vector<double> sums_ = std::vector<double>(kBins);
};

}  // namespace qevict
