#include "codec/codec.h"

#include "codec/block32.h"
#include "codec/kivi.h"
#include "codec/kxvy.h"
#include "codec/nuq.h"
#include "codec/paper_int.h"
#include "codec/zip.h"

namespace qevict {
namespace {

constexpr CodecRow kCodecs[] = {
    PaperInt<2>::row("int2", "the paper's 2 bits, min/max; 4.25 true bits per element at D = 64, 4.125 at 128"),
    PaperInt<4>::row("int4", "the paper's 4 bits, min/max; 6.25 true bits per element at D = 64, 6.125 at 128"),
    Kxvy<2, 2>::row("k2v2",
                    "2-bit keys, 2-bit values, Lloyd-Max; 2.125 true bits per element at D = 64, 2.0625 at 128"),
    Kxvy<2, 3>::row("k2v3",
                    "2-bit keys, 3-bit values, Lloyd-Max; 2.625 true bits per element at D = 64, 2.5625 at 128"),
    Kxvy<2, 4>::row("k2v4",
                    "2-bit keys, 4-bit values, Lloyd-Max; 3.125 true bits per element at D = 64, 3.0625 at 128"),
    Kxvy<3, 2>::row("k3v2",
                    "3-bit keys, 2-bit values, Lloyd-Max; 2.625 true bits per element at D = 64, 2.5625 at 128"),
    Kxvy<3, 3>::row("k3v3",
                    "3-bit keys, 3-bit values, Lloyd-Max; 3.125 true bits per element at D = 64, 3.0625 at 128"),
    Kxvy<3, 4>::row("k3v4",
                    "3-bit keys, 4-bit values, Lloyd-Max; 3.625 true bits per element at D = 64, 3.5625 at 128"),
    Kxvy<4, 2>::row("k4v2",
                    "4-bit keys, 2-bit values, Lloyd-Max; 3.125 true bits per element at D = 64, 3.0625 at 128"),
    Kxvy<4, 3>::row("k4v3",
                    "4-bit keys, 3-bit values, Lloyd-Max; 3.625 true bits per element at D = 64, 3.5625 at 128"),
    Kxvy<4, 4>::row("k4v4",
                    "4-bit keys, 4-bit values, Lloyd-Max; 4.125 true bits per element at D = 64, 4.0625 at 128"),
    Block32<BlockType::q8_0, false>::row("q8_0",
                                         "llama.cpp's 8 bits, blocks of 32 channels; 8.5 true bits per element"),
    Block32<BlockType::q4_0, false>::row("q4_0",
                                         "llama.cpp's 4 bits, blocks of 32 channels; 4.5 true bits per element"),
    Block32<BlockType::q4_1, false>::row("q4_1", "llama.cpp's 4 bits with a minimum; 5 true bits per element"),
    Block32<BlockType::q8_0, true>::row("q8_0r", "q8_0 behind a Hadamard transform; 8.5 true bits per element"),
    Block32<BlockType::q4_0, true>::row("q4_0r", "q4_0 behind a Hadamard transform; 4.5 true bits per element"),
    Block32<BlockType::q4_1, true>::row("q4_1r", "q4_1 behind a Hadamard transform; 5 true bits per element"),
    Kivi<2>::row("kivi-2",
                 "KIVI's 2 bits: keys per channel of 32 tokens, values per 32 channels; 3 true bits per element"),
    Kivi<4>::row("kivi-4",
                 "KIVI's 4 bits: keys per channel of 32 tokens, values per 32 channels; 5 true bits per element"),
    Nuq<2>::row("nuq2", "KVQuant's 2 bits, 1 in 64 exactly; 2.758 true bits per element at D = 64, 2.633 at 128"),
    Nuq<3>::row("nuq3", "KVQuant's 3 bits, 1 in 64 exactly; 3.758 true bits per element at D = 64, 3.633 at 128"),
    Nuq<4>::row("nuq4", "KVQuant's 4 bits, 1 in 64 exactly; 4.758 true bits per element at D = 64, 4.633 at 128"),
    Zip::row("zip42", "ZipCache's 4 bits, 2 for the least salient 40 %; 3.858 true bits per element at D = 64"),
};

}  // namespace

std::span<const CodecRow> codecs() { return kCodecs; }

const CodecRow* find_codec(std::string_view name) {
  for (const CodecRow& row : kCodecs)
    if (row.name == name) return &row;
  return nullptr;
}

}  // namespace qevict
