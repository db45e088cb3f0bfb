// A codec packs one window (a few contiguous tokens of one KV head) into few bits, and states its exact size.
//
// One file per codec and one row in kCodecs (codec.cc); help texts, docs and the conformance tests read the table.
// Keys are given and returned BEFORE RoPE, but for rows that say keys_after_rope. Rows are plain functions over views:
// no cache, no model.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace qevict {

struct WindowShape {
  int tokens = 8;  // of one window
  int key_dim = 64;
  int value_dim = 64;
};

// What a layer knows of a window's tokens beside their keys and values. An empty span: not known.
struct TokenSide {
  std::span<const float> scores;        // [tokens], higher matters more
  std::span<const float> value_ranges;  // [tokens][2]: values up to the first and from the second on are outliers
};

struct CodecRow {
  std::string_view name;     // as users type it: "int2"
  std::string_view summary;  // one line, with the true bits per element
  std::string_view source;   // paper and section
  std::string_view needs;    // what supports() asks for, in words: "windows of a multiple of 4 tokens and ..."
  int key_bits = 0;
  int value_bits = 0;
  int window_tokens = 8;  // of the source, or 8 where it has none
  // The paper quantizes keys as the model rotated them: encode() is given them after RoPE, at their own positions, and
  // attention takes decoded keys as they are.
  bool keys_after_rope = false;

  // Shapes that the functions below take; any other is a bug of their caller.
  bool (*supports)(WindowShape shape) = nullptr;
  // Exact bytes of one window's record, no padding assumed beyond what the layout has (docs/formats.md).
  std::size_t (*window_bytes)(WindowShape shape) = nullptr;
  // Bytes frozen per head at its first demotion (means, deviations); 0 if the codec has none.
  std::size_t (*head_bytes)(WindowShape shape) = nullptr;
  // Estimates the head's frozen parameters from n_windows windows. keys: [n_windows * tokens][key_dim],
  // values: [n_windows * tokens][value_dim], head: [head_bytes]. Null if head_bytes is always 0.
  void (*estimate_head)(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                        std::span<std::byte> head) = nullptr;
  // keys: [tokens][key_dim], values: [tokens][value_dim], record: [window_bytes].
  // Returns false, and writes nothing that may be used, if an input is not finite.
  bool (*encode)(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                 std::span<const std::byte> head, std::span<std::byte> record) = nullptr;
  // As encode, which is this with an empty side; null: the codec uses none. What of the side it uses:
  bool uses_scores = false;
  bool uses_value_ranges = false;
  bool (*encode_with)(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                      const TokenSide& side, std::span<const std::byte> head, std::span<std::byte> record) = nullptr;
  // The exact inverse of the stored codes in fp32; same shapes.
  void (*decode)(WindowShape shape, std::span<const std::byte> record, std::span<const std::byte> head,
                 std::span<float> keys, std::span<float> values) = nullptr;

  // The 8 tokens from first_token, a multiple of 8, of a longer window as a record of 8, so that kernels need to know
  // one size only. part: [window_bytes of 8 tokens]. Null: windows of this codec cannot be cut.
  void (*cut)(WindowShape shape, std::span<const std::byte> record, int first_token,
              std::span<std::byte> part) = nullptr;

  // encode_with, or encode where the codec uses nothing of the side.
  bool encode_knowing(WindowShape shape, std::span<const float> keys, std::span<const float> values,
                      const TokenSide& side, std::span<const std::byte> head, std::span<std::byte> record) const {
    return encode_with != nullptr ? encode_with(shape, keys, values, side, head, record)
                                  : encode(shape, keys, values, head, record);
  }
};

// head_bytes of codecs that freeze nothing.
inline std::size_t no_head_bytes(WindowShape) { return 0; }

std::span<const CodecRow> codecs();
// Null if there is no such codec.
const CodecRow* find_codec(std::string_view name);

}  // namespace qevict
