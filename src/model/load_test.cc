// Files that are damaged, cut, lying or of another kind: one clear line each, never a signal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "ggml-cpp.h"
#include "model/text.h"
#include "model/transformer.h"
#include "support/scratch.h"
#include "support/tiny_model.h"

namespace qevict {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::scratch_path;
using testing::TinyModel;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string write_file(const std::string& name, std::string_view bytes) {
  const std::string path = scratch_path(name);
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

Error load_error(const std::string& path) {
  auto model = Transformer::load(path);
  return model ? Error{Error::Kind::internal, "loaded without an error"} : model.error();
}

Error load_error(const TinyModel& model) {
  const std::string path = scratch_path("damaged.gguf");
  model.write(path);
  return load_error(path);
}

void expect_one_line(const Error& error, const std::string& path) {
  EXPECT_THAT(error.message, AllOf(HasSubstr(path), Not(HasSubstr("\n"))));
}

class WholeFile : public ::testing::Test {
 protected:
  void SetUp() override {
    TinyModel().write(path_);
    bytes_ = read_file(path_);
  }
  std::string path_ = scratch_path("whole.gguf");
  std::string bytes_;
};

TEST_F(WholeFile, LoadsAndTellsItsShape) {
  auto model = Transformer::load(path_);
  ASSERT_TRUE(model) << model.error().message;
  const ModelShape& shape = (*model)->shape();
  EXPECT_EQ(shape.architecture, "llama");
  EXPECT_EQ(shape.name, "tiny");
  EXPECT_EQ(shape.weights, "F32");
  EXPECT_EQ(shape.n_layers, 2);
  EXPECT_EQ(shape.n_heads, 3);
  EXPECT_EQ(shape.n_kv_heads, 1);
  EXPECT_EQ(shape.head_dim, 64);
  EXPECT_EQ(shape.n_embd, 192);
  EXPECT_EQ(shape.n_vocab, 320);
  EXPECT_FLOAT_EQ(shape.attention_scale, 0.125f);
  EXPECT_EQ(shape.rope.pairs(), 32);
  EXPECT_EQ((*model)->weight_bytes(), (*model)->mapped_bytes() + (*model)->repacked_bytes());
  EXPECT_GT((*model)->mapped_bytes(), 0u);
}

TEST_F(WholeFile, CutAnywhereIsAnIoError) {
  const std::size_t cuts[] = {0, 4, 20, 24, 1024, bytes_.size() / 2, bytes_.size() - 1};
  for (const std::size_t cut : cuts) {
    const std::string path = write_file("cut.gguf", std::string_view(bytes_).substr(0, cut));
    for (const Error& error : {load_error(path), Vocabulary::load(path, "").error()}) {
      EXPECT_EQ(error.kind, Error::Kind::io) << cut << ": " << error.message;
      expect_one_line(error, path);
    }
  }
}

TEST_F(WholeFile, MissingFolderAndTextFilesAreIoErrors) {
  EXPECT_THAT(load_error(scratch_path("missing.gguf")).message, HasSubstr("No such file"));
  EXPECT_THAT(load_error(std::filesystem::temp_directory_path().string()).message, HasSubstr("not a regular file"));
  const std::string text = write_file("text.gguf", "This is a text, renamed.\n");
  EXPECT_THAT(load_error(text).message, HasSubstr("not a GGUF model"));
  EXPECT_EQ(Vocabulary::load(text, "").error().kind, Error::Kind::io);
}

// Whatever a wrong byte of the metadata does, it is no signal and no abort. All of the header and the keys are tried,
// and a sample of the vocabulary and the tensor table.
TEST_F(WholeFile, AnyByteOfTheMetadataMayBeWrong) {
  const std::size_t vocabulary = bytes_.find("tokenizer.ggml.tokens");
  const std::size_t tensors = bytes_.rfind("token_embd.weight");
  const std::size_t end = bytes_.find("blk.1.ffn_down.weight") + 64;
  std::mt19937 random(3);
  const std::string path = scratch_path("flipped.gguf");
  const auto step = [&](std::size_t at) { return at < vocabulary + 64 ? 1u : at < tensors ? 61u : 7u; };
  for (std::size_t at = 4; at < end; at += step(at)) {
    std::string flipped = bytes_;
    flipped[at] = static_cast<char>(random());
    write_file("flipped.gguf", flipped);
    auto model = Transformer::load(path);
    if (!model) expect_one_line(model.error(), path);
    auto vocabulary_only = Vocabulary::load(path, "");
    if (!vocabulary_only) expect_one_line(vocabulary_only.error(), path);
  }
}

TEST_F(WholeFile, HugeCountsAreRefused) {
  for (const std::size_t at : {8u, 16u}) {  // n_tensors, n_kv
    for (const std::uint64_t count : {~std::uint64_t{0}, std::uint64_t{1} << 62, std::uint64_t{1} << 40}) {
      std::string lying = bytes_;
      lying.replace(at, 8, reinterpret_cast<const char*>(&count), 8);
      EXPECT_EQ(load_error(write_file("lying.gguf", lying)).kind, Error::Kind::io);
    }
  }
}

TEST_F(WholeFile, TensorsOutsideTheFileAndImpossibleShapesAreRefused) {
  const std::string name = "token_embd.weight";
  const std::size_t info = bytes_.rfind(name) + name.size();  // n_dims u32, ne u64 each, type u32, offset u64
  const auto patched = [&](std::size_t at, std::uint64_t value, std::size_t size) {
    std::string lying = bytes_;
    lying.replace(info + at, size, reinterpret_cast<const char*>(&value), size);
    return load_error(write_file("lying.gguf", lying));
  };
  EXPECT_EQ(patched(4, 0, 8).kind, Error::Kind::io);                        // zero columns
  EXPECT_EQ(patched(4, std::uint64_t{1} << 62, 8).kind, Error::Kind::io);   // overflow
  EXPECT_EQ(patched(12, std::uint64_t{1} << 30, 8).kind, Error::Kind::io);  // beyond the end
  EXPECT_EQ(patched(20, 999, 4).kind, Error::Kind::io);                     // no such type
  EXPECT_EQ(patched(20, GGML_TYPE_I32, 4).kind, Error::Kind::unsupported);  // a type nobody multiplies by
  EXPECT_EQ(patched(24, std::uint64_t{1} << 40, 8).kind, Error::Kind::io);  // offset
}

TEST(Refusals, OtherArchitecturesListTheKnownOnes) {
  const Error error = load_error(
      TinyModel{.edit = [](gguf_context* meta) { gguf_set_val_str(meta, "general.architecture", "mamba"); }});
  EXPECT_EQ(error.kind, Error::Kind::unsupported);
  EXPECT_THAT(error.message, AllOf(HasSubstr("'mamba'"), HasSubstr("llama, qwen2, qwen3")));
}

struct Refusal {
  const char* name;
  std::function<void(gguf_context*)> edit;
  Error::Kind kind;
  const char* says;
  friend void PrintTo(const Refusal& one, std::ostream* out) { *out << one.name; }
};

class RefusedKeys : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedKeys, ByName) {
  const Error error = load_error(TinyModel{.edit = GetParam().edit});
  EXPECT_EQ(error.kind, GetParam().kind);
  EXPECT_THAT(error.message, HasSubstr(GetParam().says));
}

std::function<void(gguf_context*)> set_u32(const char* key, std::uint32_t value) {
  return [=](gguf_context* meta) { gguf_set_val_u32(meta, key, value); };
}
std::function<void(gguf_context*)> set_f32(const char* key, float value) {
  return [=](gguf_context* meta) { gguf_set_val_f32(meta, key, value); };
}
std::function<void(gguf_context*)> set_str(const char* key, const char* value) {
  return [=](gguf_context* meta) { gguf_set_val_str(meta, key, value); };
}
std::function<void(gguf_context*)> remove(const char* key) {
  return [=](gguf_context* meta) { gguf_remove_key(meta, key); };
}

constexpr auto kIo = Error::Kind::io;
constexpr auto kUnsupported = Error::Kind::unsupported;

const Refusal kRefusals[] = {
    {"NoArchitecture", remove("general.architecture"), kIo, "general.architecture"},
    {"ArchitectureNumber", set_u32("general.architecture", 3), kIo, "expected a string"},
    {"NoLayers", remove("llama.block_count"), kIo, "llama.block_count"},
    {"ZeroLayers", set_u32("llama.block_count", 0), kIo, "is 0"},
    {"ManyLayers", set_u32("llama.block_count", 4000000000u), kIo, "4000000000"},
    {"ThreeLayers", set_u32("llama.block_count", 3), kIo, "blk.2.attn_norm.weight"},
    {"OneLayer", set_u32("llama.block_count", 1), kUnsupported, "blk.1."},
    {"LayersText", set_str("llama.block_count", "2"), kIo, "has type str, expected an integer"},
    {"LayersFloat", set_f32("llama.block_count", 2.0f), kIo, "expected an integer"},
    {"ZeroHeads", set_u32("llama.attention.head_count", 0), kIo, "head_count"},
    {"OddGroups", set_u32("llama.attention.head_count_kv", 2), kIo, "3 heads are no multiple of its 2 KV heads"},
    {"OtherHeads", set_u32("llama.attention.head_count", 6), kUnsupported,
     "head size 32; supported: 64, 80, 96, 128, 256"},
    {"UnevenHeads", set_u32("llama.attention.head_count", 5), kIo, "no multiple of its 5 heads"},
    {"Experts", set_u32("llama.expert_count", 8), kUnsupported, "mixture of 8 experts"},
    {"SlidingWindow", set_u32("llama.attention.sliding_window", 128), kUnsupported, "sliding-window"},
    {"ValueLength", set_u32("llama.attention.value_length", 128), kUnsupported, "keys of 64 and values of 128"},
    {"PartialRope", set_u32("llama.rope.dimension_count", 32), kUnsupported, "rotates 32 of 64"},
    {"LongRope", set_str("llama.rope.scaling.type", "longrope"), kUnsupported,
     "'longrope'; supported: none, linear, yarn"},
    {"NegativeScaling", set_f32("llama.rope.scaling.factor", -1.0f), kIo, "scaling factor"},
    {"EpsilonNotANumber", set_f32("llama.attention.layer_norm_rms_epsilon", std::nanf("")), kIo, "rms_epsilon"},
    {"NoEpsilon", remove("llama.attention.layer_norm_rms_epsilon"), kIo, "rms_epsilon"},
    {"EpsilonInteger", set_u32("llama.attention.layer_norm_rms_epsilon", 1), kIo, "floating-point"},
    {"FreqBase", set_f32("llama.rope.freq_base", 0.0f), kIo, "freq_base"},
    {"Width", set_u32("llama.embedding_length", 1u << 31), kIo, "embedding_length"},
    {"OtherWidth", set_u32("llama.embedding_length", 384), kUnsupported, "rotates 64 of 128"},
    {"Encoder", [](gguf_context* m) { gguf_set_val_bool(m, "llama.attention.causal", false); }, kUnsupported, "causal"},
    {"HeadsPerLayer",
     [](gguf_context* m) {
       const std::uint32_t heads[] = {3, 6};
       gguf_set_arr_data(m, "llama.attention.head_count", GGUF_TYPE_UINT32, heads, 2);
     },
     kUnsupported, "layers of different kinds"},
    {"TokensOfNumbers",
     [](gguf_context* m) {
       const std::uint32_t tokens[] = {3, 6};
       gguf_set_arr_data(m, "tokenizer.ggml.tokens", GGUF_TYPE_UINT32, tokens, 2);
     },
     kIo, "array of strings"},
    {"FewTokens",
     [](gguf_context* m) {
       const char* tokens[] = {"a", "b"};
       gguf_set_arr_str(m, "tokenizer.ggml.tokens", tokens, 2);
     },
     kIo, "2 tokens, 'token_embd.weight' 320 rows"},
    {"LaterShard",
     [](gguf_context* m) {
       gguf_set_val_u16(m, "split.count", 2);
       gguf_set_val_u16(m, "split.no", 1);
     },
     Error::Kind::invalid, "shard 2 of a model of 2"},
    {"ShardName", [](gguf_context* m) { gguf_set_val_u16(m, "split.count", 2); }, kIo, "-00001-of-00002.gguf"},
};

INSTANTIATE_TEST_SUITE_P(Keys, RefusedKeys, ::testing::ValuesIn(kRefusals),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(Refusals, TensorsThatDoNotFit) {
  EXPECT_THAT(load_error(TinyModel{.without_tensor = "blk.1.attn_v.weight"}).message,
              HasSubstr("'blk.1.attn_v.weight' is missing"));
  EXPECT_THAT(load_error(TinyModel{.without_tensor = "token_embd.weight"}).message,
              HasSubstr("'token_embd.weight' is missing"));
  EXPECT_THAT(load_error(TinyModel{.transposed = "blk.0.ffn_up.weight"}).message,
              HasSubstr("256 x 192 x 1 x 1, expected 192 x 256"));
  EXPECT_THAT(load_error(TinyModel{.half_tensor = "output_norm.weight"}).message, HasSubstr("type f16, expected f32"));
  EXPECT_THAT(load_error(TinyModel{.extra_tensor = "blk.0.attn_q.scale"}).message, HasSubstr("'blk.0.attn_q.scale'"));
}

TEST(Shards, AreLoadedTogetherOrTheMissingOneIsNamed) {
  TinyModel model{.edit = [](gguf_context* m) { gguf_set_val_u16(m, "split.count", 2); }};
  const std::string first = scratch_path("split-00001-of-00002.gguf");
  const std::string second = scratch_path("split-00002-of-00002.gguf");
  std::filesystem::remove(second);
  model.without_tensor = "output.weight";
  model.write(first);
  EXPECT_THAT(load_error(first).message, AllOf(HasSubstr(second), HasSubstr("shard 2 of 2")));

  ggml_context_ptr tensors(ggml_init({std::size_t{1} << 20, nullptr, false}));
  ggml_tensor* output = ggml_new_tensor_2d(tensors.get(), GGML_TYPE_F32, 192, 320);
  ggml_set_name(output, "output.weight");
  gguf_context_ptr meta(gguf_init_empty());
  gguf_set_val_u16(meta.get(), "split.count", 2);
  gguf_set_val_u16(meta.get(), "split.no", 1);
  gguf_add_tensor(meta.get(), output);
  ASSERT_TRUE(gguf_write_to_file(meta.get(), second.c_str(), false));
  auto loaded = Transformer::load(first);
  EXPECT_TRUE(loaded) << loaded.error().message;
}

TEST(VocabularyFile, DuplicateAndMissingTokensAreIoErrors) {
  const std::string path = scratch_path("vocabulary.gguf");
  TinyModel{.edit = [](gguf_context* m) {
    const std::vector<const char*> same(320, "same");
    gguf_set_arr_str(m, "tokenizer.ggml.tokens", const_cast<const char**>(same.data()), same.size());
  }}.write(path);
  EXPECT_THAT(Vocabulary::load(path, "").error().message, HasSubstr("token 1 appears twice"));
  TinyModel{.edit = remove("tokenizer.ggml.tokens")}.write(path);
  EXPECT_THAT(Vocabulary::load(path, "").error().message, HasSubstr("no vocabulary"));
  TinyModel{.edit = set_str("tokenizer.ggml.model", "unheard-of")}.write(path);
  EXPECT_THAT(Vocabulary::load(path, "").error().message, HasSubstr("unheard-of"));
}

}  // namespace
}  // namespace qevict
