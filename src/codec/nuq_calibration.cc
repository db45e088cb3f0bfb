#include "codec/nuq_calibration.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "base/part_file.h"
#include "codec/record.h"

namespace qevict {
namespace {

// A number after it would be that of another layout.
constexpr char kMagic[8] = {'Q', 'V', 'N', 'U', 'Q', '0', '0', '1'};
constexpr std::size_t kVersionAt = 5;  // in kMagic
constexpr int kMostLayers = 4096, kMostHeads = 4096, kLongestName = 4096;

std::uint64_t fnv1a(std::span<const char> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return hash;
}

class Writer {
 public:
  template <class T>
  void number(T value) {
    const auto at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(&bytes_[at], &value, sizeof value);
  }
  void text(std::string_view text) { bytes_.insert(bytes_.end(), text.begin(), text.end()); }
  std::vector<char>& bytes() { return bytes_; }

 private:
  std::vector<char> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const char> bytes) : bytes_(bytes) {}
  template <class T>
  T number() {
    T value{};
    if (const auto from = take(sizeof value); from.size() == sizeof value)
      std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::string text(std::size_t n) {
    const auto from = take(n);
    return {from.begin(), from.end()};
  }
  bool cut() const { return cut_; }
  bool empty() const { return bytes_.empty(); }

 private:
  std::span<const char> take(std::size_t n) {
    if (n > bytes_.size()) cut_ = true;
    const auto from = bytes_.first(std::min(n, bytes_.size()));
    bytes_ = bytes_.subspan(from.size());
    return from;
  }
  std::span<const char> bytes_;
  bool cut_ = false;
};

void write_levels(const std::vector<float>& levels, int bits, Writer& out) {
  QEVICT_CHECK(levels.size() == std::size_t{1} << bits, "2^bits levels");
  for (const float level : levels) out.number(to_half(level).bits);
}

// False if they are no table.
bool read_levels(int bits, std::vector<float>& levels, Reader& in) {
  for (int i = 0; i < 1 << bits; ++i) levels.push_back(to_float({in.number<std::uint16_t>()}));
  return std::ranges::all_of(levels, [](float x) { return std::abs(x) <= 1.0f; }) && std::ranges::is_sorted(levels);
}

bool read_layer(const NuqModel& model, NuqLayer& layer, Reader& in) {
  bool good = true;
  for (auto* tables : {&layer.key_levels, &layer.value_levels})
    for (int bits = 2; bits <= 4; ++bits) good &= read_levels(bits, (*tables)[bits - 2], in);
  for (int i = 0; i < model.n_kv_heads * model.key_dim && !in.cut(); ++i) {
    const NuqRange range{{in.number<std::uint16_t>()}, {in.number<std::uint16_t>()}};
    good &= std::isfinite(to_float(range.offset)) && std::isfinite(to_float(range.range)) && to_float(range.range) > 0;
    layer.ranges.push_back(range);
  }
  return good;
}

std::string words_of(const NuqModel& model) {
  return fmt::format("\"{}\" ({} layers of {} KV heads of {} and {}, {} bytes of weights)", model.name, model.n_layers,
                     model.n_kv_heads, model.key_dim, model.value_dim, model.file_bytes);
}

}  // namespace

std::vector<std::byte> NuqCalibration::head_data(const CodecRow& codec, int layer, int kv_head) const {
  const int bits = codec.decode == &Nuq<2>::decode   ? 2
                   : codec.decode == &Nuq<3>::decode ? 3
                   : codec.decode == &Nuq<4>::decode ? 4
                                                     : 0;
  if (bits == 0) return {};
  QEVICT_CHECK(layer >= 0 && layer < static_cast<int>(layers.size()) && kv_head >= 0 && kv_head < model.n_kv_heads,
               "a head of the model");
  const NuqLayout layout{{.tokens = 1, .key_dim = model.key_dim, .value_dim = model.value_dim}, bits};
  const NuqLayer& of = layers[static_cast<std::size_t>(layer)];
  const auto dim = static_cast<std::size_t>(model.key_dim);
  std::vector<std::byte> head(layout.head_bytes());
  store_nuq_head(layout, std::span(of.ranges).subspan(static_cast<std::size_t>(kv_head) * dim, dim),
                 of.key_levels[bits - 2], of.value_levels[bits - 2], head);
  return head;
}

std::string nuq_path(const std::string& model_path) {
  std::filesystem::path path(model_path);
  if (path.extension() == ".nuq") return model_path + ".nuq";  // a model by a strange name
  return path.replace_extension(".nuq").string();
}

Result<void> write_nuq(const NuqCalibration& calibration, const std::string& path) {
  const NuqModel& model = calibration.model;
  QEVICT_CHECK(static_cast<int>(calibration.layers.size()) == model.n_layers, "all layers");
  Writer out;
  out.text({kMagic, sizeof kMagic});
  for (const int n : {model.n_layers, model.n_kv_heads, model.key_dim, model.value_dim})
    out.number(static_cast<std::uint32_t>(n));
  out.number(model.file_bytes);
  out.number(static_cast<std::uint32_t>(model.name.size()));
  out.text(model.name);
  for (const NuqLayer& layer : calibration.layers) {
    QEVICT_CHECK(layer.ranges.size() == static_cast<std::size_t>(model.n_kv_heads) * model.key_dim, "all channels");
    for (const auto* tables : {&layer.key_levels, &layer.value_levels})
      for (int bits = 2; bits <= 4; ++bits) write_levels((*tables)[bits - 2], bits, out);
    for (const NuqRange& range : layer.ranges) {
      out.number(range.offset.bits);
      out.number(range.range.bits);
    }
  }
  out.number(fnv1a(out.bytes()));

  const Result<std::string> part = new_part_file(path);
  if (!part) return part.error();
  std::ofstream file(*part, std::ios::binary);
  file.write(out.bytes().data(), static_cast<std::streamsize>(out.bytes().size()));
  file.close();
  Result<void> written;
  if (!file) written = io_error("cannot write {}: {}", path, std::strerror(errno));
  return finish_part_file(*part, path, std::move(written));
}

Result<NuqCalibration> read_nuq(const std::string& path, const NuqModel& expected) {
  std::error_code problem;
  if (std::filesystem::exists(path, problem) && !std::filesystem::is_regular_file(path, problem)) {
    return io_error("{} is not a file: give what `qevict eval calibrate` wrote", path);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error("cannot open {}: make it with `qevict eval calibrate`", path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const std::string_view magic(kMagic, sizeof kMagic);
  const std::string_view begin(bytes.data(), std::min(bytes.size(), magic.size()));
  if (!begin.starts_with(magic.substr(0, kVersionAt))) return io_error("{} is not a KVQuant calibration", path);
  if (begin != magic) {
    return Error{Error::Kind::unsupported,
                 fmt::format("{} is a KVQuant calibration of version {}, this reads {}: run `qevict eval calibrate`",
                             path, begin.substr(kVersionAt), magic.substr(kVersionAt))};
  }
  constexpr std::size_t kHash = sizeof(std::uint64_t);
  const auto damaged = [&] { return io_error("{} is cut or damaged: run `qevict eval calibrate` again", path); };
  if (bytes.size() < magic.size() + kHash) return damaged();
  const std::span<const char> body(bytes.data(), bytes.size() - kHash);
  if (Reader(std::span(bytes).last(kHash)).number<std::uint64_t>() != fnv1a(body)) return damaged();

  Reader in(body.subspan(magic.size()));
  NuqCalibration result;
  NuqModel& model = result.model;
  for (int* n : {&model.n_layers, &model.n_kv_heads, &model.key_dim, &model.value_dim})
    *n = static_cast<int>(std::min<std::uint32_t>(in.number<std::uint32_t>(), 1u << 30));
  model.file_bytes = in.number<std::uint64_t>();
  const auto name_bytes = in.number<std::uint32_t>();
  if (in.cut() || name_bytes > kLongestName) return damaged();
  model.name = in.text(name_bytes);
  if (in.cut() || model.n_layers > kMostLayers || model.n_kv_heads > kMostHeads || model.key_dim > kNuqLargestDim) {
    return damaged();
  }
  if (model != expected) {
    return invalid("{} is a calibration of {}, not of {}: run `qevict eval calibrate`", path, words_of(model),
                   words_of(expected));
  }
  for (int i = 0; i < model.n_layers; ++i) {
    if (!read_layer(model, result.layers.emplace_back(), in) || in.cut()) return damaged();
  }
  if (!in.empty()) return damaged();
  return result;
}

void NuqHistogram::add(float x) {
  x = std::clamp(x, -1.0f, 1.0f);
  const auto bin = static_cast<std::size_t>(std::min((x + 1.0f) / 2.0f * kBins, kBins - 1.0f));
  counts_[bin] += 1.0;
  sums_[bin] += x;
}

std::vector<float> NuqHistogram::levels(int bits) const {
  constexpr int kMostRounds = 1000;
  const std::size_t n = std::size_t{1} << bits;
  std::vector<double> count_before(kBins + 1), sum_before(kBins + 1);
  for (std::size_t i = 0; i < kBins; ++i) {
    count_before[i + 1] = count_before[i] + counts_[i];
    sum_before[i + 1] = sum_before[i] + sums_[i];
  }
  QEVICT_CHECK(count_before.back() > 0, "something to make levels of");
  std::vector<double> levels(n);
  for (std::size_t j = 0; j < n; ++j) {
    const double place = (static_cast<double>(j) + 0.5) / static_cast<double>(n) * count_before.back();
    const auto bin = std::ranges::upper_bound(count_before, place) - count_before.begin() - 1;
    levels[j] = sums_[static_cast<std::size_t>(bin)] / counts_[static_cast<std::size_t>(bin)];
  }
  // Level j has the bins from edges[j] to edges[j + 1].
  std::vector<std::size_t> edges(n + 1), previous;
  edges[n] = kBins;
  for (int round = 0; round < kMostRounds && edges != previous; ++round) {
    previous = edges;
    for (std::size_t j = 1; j < n; ++j) {
      const double middle = (levels[j - 1] + levels[j]) / 2;
      edges[j] = static_cast<std::size_t>(std::lround((middle + 1) / 2 * kBins));
    }
    for (std::size_t j = 0; j < n; ++j) {
      const double count = count_before[edges[j + 1]] - count_before[edges[j]];
      if (count > 0) levels[j] = (sum_before[edges[j + 1]] - sum_before[edges[j]]) / count;
    }
  }
  return {levels.begin(), levels.end()};
}

}  // namespace qevict
