#include "kernels/rotation_table.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>

#include "base/check.h"
#include "codec/paper_int.h"

namespace qevict {
namespace {

void fill_pairs(const Rope& rope, int padded_pairs, double position, double magnitude, float* row) {
  for (int i = 0; i < padded_pairs; ++i) {
    const double angle = i < rope.pairs() ? position * static_cast<double>(rope.frequency[i]) : 0.0;
    row[i] = static_cast<float>(std::cos(angle) * magnitude);
    row[padded_pairs + i] = static_cast<float>(std::sin(angle) * magnitude);
  }
}

int padded_pairs_of(const Rope& rope) { return (rope.pairs() + 15) / 16 * 16; }

std::int16_t fixed15(double x) { return static_cast<std::int16_t>(std::lrint(std::min(x * 32768.0, 32767.0))); }

// The RoPE pair of a channel, -1 if it is not turned.
int pair_of(const Rope& rope, int channel) {
  if (channel >= 2 * rope.pairs()) return -1;
  return rope.neox ? channel % rope.pairs() : channel / 2;
}

// A process meets as many ropes as it loads models: a short list, never shortened.
template <class Table>
const Table& kept_table(const Rope& rope, int key_dim, Table* (*make)(const Rope&, int)) {
  struct Entry {
    Rope rope;
    int key_dim;
    std::unique_ptr<const Table> table;
    bool is_for(const Rope& other, int dim) const {
      return key_dim == dim && rope.neox == other.neox && rope.magnitude == other.magnitude &&
             rope.frequency == other.frequency;
    }
  };
  static std::mutex mutex;
  static std::vector<std::unique_ptr<const Entry>> entries;
  thread_local const Entry* last = nullptr;
  if (last != nullptr && last->is_for(rope, key_dim)) return *last->table;
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& entry : entries) {
    if (entry->is_for(rope, key_dim)) return *(last = entry.get())->table;
  }
  entries.push_back(
      std::unique_ptr<const Entry>(new Entry{rope, key_dim, std::unique_ptr<const Table>(make(rope, key_dim))}));
  return *(last = entries.back().get())->table;
}

}  // namespace

BlockRows::BlockRows(std::size_t row_floats, std::function<void(double position, float* row)> fill)
    : row_floats_(row_floats), fill_(std::move(fill)) {}

BlockRows::~BlockRows() {
  for (const std::atomic<const float*>& page : pages_) delete[] page.load();
}

const float* BlockRows::row(int block) const {
  std::atomic<const float*>& slot = pages_[block / kRowsPerPage];
  const float* page = slot.load(std::memory_order_acquire);
  if (page == nullptr) {
    // Two threads may make the same page; one is kept.
    auto fresh = std::make_unique<float[]>(row_floats_ * kRowsPerPage);
    const int first = block / kRowsPerPage * kRowsPerPage;
    for (int i = 0; i < kRowsPerPage; ++i)
      fill_(static_cast<double>(first + i) * kOffsets, fresh.get() + row_floats_ * i);
    if (slot.compare_exchange_strong(page, fresh.get(), std::memory_order_acq_rel)) page = fresh.release();
  }
  return page + row_floats_ * (block % kRowsPerPage);
}

RotationTable::RotationTable(const Rope& rope)
    : padded_pairs_(padded_pairs_of(rope)),
      blocks_(std::size_t{2} * padded_pairs_, [rope](double position, float* row) {
        fill_pairs(rope, padded_pairs_of(rope), position, rope.magnitude, row);
      }) {
  offsets_.resize(std::size_t{2} * padded_pairs_ * kOffsets);
  for (int offset = 0; offset < kOffsets; ++offset)
    fill_pairs(rope, padded_pairs_, offset, 1.0, offsets_.data() + std::size_t{2} * padded_pairs_ * offset);
}

const RotationTable& rotation_table(const Rope& rope) {
  return kept_table<RotationTable>(rope, 0, [](const Rope& r, int) { return new RotationTable(r); });
}

WindowRotation::WindowRotation(const Rope& rope, int tokens) : rope_(rope), tokens_(tokens) {
  for (int t = 0; t < tokens; ++t) {
    for (const float frequency : rope.frequency) {
      cosines_.push_back(std::cos(t * static_cast<double>(frequency)));
      sines_.push_back(std::sin(t * static_cast<double>(frequency)));
    }
  }
}

void WindowRotation::turn(std::span<float> keys, int key_dim, std::int64_t first, double sign, double scale) const {
  QEVICT_CHECK(key_dim >= 2 * rope_.pairs() && keys.size() == static_cast<std::size_t>(tokens_) * key_dim,
               "the keys of one window, with the rotated channels inside");
  for (int pair = 0; pair < rope_.pairs(); ++pair) {
    const double angle = static_cast<double>(first) * static_cast<double>(rope_.frequency[pair]);
    const double base_cosine = std::cos(angle) * scale;
    const double base_sine = std::sin(angle) * scale;
    float* a = keys.data() + rope_.first(pair);
    float* b = keys.data() + rope_.second(pair);
    for (int t = 0; t < tokens_; ++t, a += key_dim, b += key_dim) {
      const double offset_cosine = cosines_[t * rope_.pairs() + pair], offset_sine = sines_[t * rope_.pairs() + pair];
      const double cosine = base_cosine * offset_cosine - base_sine * offset_sine;
      const double sine = sign * (base_sine * offset_cosine + base_cosine * offset_sine);
      const double old_a = *a, old_b = *b;
      *a = static_cast<float>(old_a * cosine - old_b * sine);
      *b = static_cast<float>(old_a * sine + old_b * cosine);
    }
  }
}

void WindowRotation::rotate(std::span<float> keys, int key_dim, std::int64_t first) const {
  turn(keys, key_dim, first, 1.0, rope_.magnitude);
}

void WindowRotation::unrotate(std::span<float> keys, int key_dim, std::int64_t first) const {
  turn(keys, key_dim, first, -1.0, 1.0 / static_cast<double>(rope_.magnitude));
}

const WindowRotation& window_rotation(const Rope& rope, int tokens) {
  return kept_table<WindowRotation>(rope, tokens, [](const Rope& r, int n) { return new WindowRotation(r, n); });
}

bool CodeRotation::fits(const Rope& rope, int key_dim) {
  if (key_dim % 32 != 0 || 2 * rope.pairs() > key_dim) return false;
  // NeoX: the second members lie whole rows of registers behind the first.
  return rope.neox ? 2 * rope.pairs() == key_dim && key_dim % 64 == 0 : rope.pairs() % 4 == 0;
}

bool CodeRotation::fits_windows(const HeadView& head, const TokenRange& range, int key_dim, int max_tokens) {
  constexpr int kTokens = 8;
  const int tokens = range.end - range.begin;
  if (head.window.tokens != kTokens || tokens <= 0 || tokens > max_tokens || !fits(*head.rope, key_dim)) return false;
  return std::all_of(
      head.codes.begin() + range.begin / kTokens, head.codes.begin() + range.end / kTokens,
      [](const CodeWindow& window) { return window.position >= 0 && window.position < kMaxTablePosition; });
}

CodeRotation::CodeRotation(const Rope& rope, int key_dim)
    : key_dim_(key_dim),
      channels_(key_dim),
      partners_(key_dim),
      signs_(key_dim),
      magnitudes_(key_dim),
      blocks_(std::size_t{2} * key_dim, [rope, key_dim, this](double position, float* row) {
        for (int i = 0; i < key_dim; ++i) {
          const int pair = pair_of(rope, channels_[i]);
          const double angle = pair < 0 ? 0.0 : position * static_cast<double>(rope.frequency[pair]);
          row[i] = static_cast<float>(std::cos(angle) * magnitudes_[i]);
          row[key_dim + i] = static_cast<float>(std::sin(angle) * magnitudes_[i]);
        }
      }) {
  const PaperIntLayout layout{{.tokens = 8, .key_dim = key_dim, .value_dim = key_dim}, 2};
  offsets_.resize(std::size_t{2} * key_dim * kOffsets);
  const auto frequency = [&](int channel) {
    const int pair = pair_of(rope, channel);
    return pair < 0 ? 0.0 : static_cast<double>(rope.frequency[pair]);
  };
  for (int c = 0; c < key_dim; ++c) {
    const int pair = pair_of(rope, c);
    const int slot = layout.key_slot(c);
    const bool is_first = pair >= 0 && c == rope.first(pair);
    channels_[slot] = c;
    partners_[slot] = pair < 0 ? c : is_first ? rope.second(pair) : rope.first(pair);
    signs_[slot] = pair < 0 ? 0.0f : is_first ? 1.0f : -1.0f;
    magnitudes_[slot] = pair < 0 ? 1.0f : rope.magnitude;
    const int in_registers = 4 * (c / 8 * 2 + c % 2) + c % 8 / 2;
    for (int offset = 0; offset < kOffsets; ++offset) {
      std::int16_t* row = offsets_.data() + std::size_t{2} * key_dim * offset;
      row[in_registers] = fixed15(std::cos((offset + 3.5) * frequency(c)));
      row[key_dim + in_registers] = fixed15(std::sin((offset + 3.5) * frequency(c)));
    }
  }
  for (int p = 0; p < key_dim / 8; ++p) {
    // First members of the register pair: an even register (its pair is the odd one), or a register of the first half.
    const int first_register = rope.neox ? p : 2 * p;
    double largest = 0.0;
    for (int lane = 0; lane < 32; ++lane) {
      const int channel = first_register / 2 * 8 + first_register % 2 + lane % 4 * 2;
      const double angle = (lane / 4 - 3.5) * frequency(channel);
      largest = std::max(largest, std::abs(angle));
      in_window_.push_back(fixed15(std::cos(angle)));
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int channel = first_register / 2 * 8 + first_register % 2 + lane % 4 * 2;
      in_window_.push_back(fixed15(std::sin((lane / 4 - 3.5) * frequency(channel))));
    }
    // An error of `largest`, or of its half square, times a key: small beside a step of the key's codes.
    turns_.push_back(largest < 1e-3 ? Turn::none : largest < 0.03 ? Turn::small : Turn::full);
  }
}

const CodeRotation& code_rotation(const Rope& rope, int key_dim) {
  return kept_table<CodeRotation>(rope, key_dim, [](const Rope& r, int dim) { return new CodeRotation(r, dim); });
}

}  // namespace qevict
