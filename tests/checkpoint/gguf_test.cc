#include "checkpoint/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "../base/cpu_time.h"
#include "../base/temp_folder.h"
#include "gguf_bytes.h"

namespace glint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<GgufFile::Header> parse(const std::string& bytes) {
  return GgufFile::parse(std::as_bytes(std::span(bytes)), bytes.size(), "some.gguf");
}

// The message of a refusal, which must be of this kind.
std::string refusal(const std::string& bytes, ErrorCode code = ErrorCode::kCorrupt) {
  const auto header = parse(bytes);
  if (header) return "accepted";
  EXPECT_EQ(header.error().code, code) << header.error().message;
  EXPECT_THAT(header.error().message, HasSubstr("some.gguf"));
  EXPECT_LT(header.error().message.size(), 1000u);
  return header.error().message;
}

std::string refusal(const GgufWriter& writer, ErrorCode code = ErrorCode::kCorrupt) {
  return refusal(writer.file(), code);
}

GgufWriter one_tensor(std::vector<std::uint64_t> dims, std::uint32_t type = kGgmlF32,
                      std::uint64_t offset = 0) {
  GgufWriter writer;
  writer.tensors.push_back({"t", std::move(dims), type, offset});
  writer.data_bytes = 4096;
  return writer;
}

TEST(Gguf, every_type_of_value_is_read) {
  GgufWriter w;
  w.raw("u8", kGgufUint8, "\xff").raw("i8", 1, "\xff").u16("u16", 65535);
  w.raw("i16", 3, little_endian<std::int16_t>(-2)).u32("u32", 4294967295u);
  w.raw("i32", kGgufInt32, little_endian<std::int32_t>(-3)).f32("f32", 1.5f);
  w.boolean("yes", true).boolean("no", false).text("text", "hello");
  w.raw("u64", kGgufUint64, little_endian(std::numeric_limits<std::uint64_t>::max()));
  w.raw("i64", 11, little_endian<std::int64_t>(-4)).raw("f64", 12, little_endian(0.1));
  w.array("ints", kGgufInt32, 2, little_endian<std::int32_t>(7) + little_endian<std::int32_t>(-8));
  w.array("floats", kGgufFloat32, 1, little_endian(0.5f));
  w.array("bools", kGgufBool, 2, std::string("\1\0", 2)).array("none", kGgufString, 0, "");
  w.texts("texts", {"a", "", "ccc"});
  TempFolder folder;
  const auto opened = GgufFile::open(folder.write("m.gguf", w.file()));
  ASSERT_TRUE(opened) << opened.error().message;
  const GgufFile& file = **opened;
  EXPECT_EQ(file.integer("u8"), 255);
  EXPECT_EQ(file.integer("i8"), -1);
  EXPECT_EQ(file.integer("u16"), 65535);
  EXPECT_EQ(file.integer("i16"), -2);
  EXPECT_EQ(file.integer("u32"), 4294967295);
  EXPECT_EQ(file.integer("i32"), -3);
  EXPECT_EQ(file.integer("i64"), -4);
  EXPECT_EQ(file.integer("u64"), std::nullopt);
  EXPECT_EQ(file.number("u64"), 18446744073709551615.0);
  EXPECT_EQ(file.number("i32"), -3.0);
  EXPECT_EQ(file.number("f32"), 1.5);
  EXPECT_EQ(file.number("f64"), 0.1);
  EXPECT_EQ(file.number("text"), std::nullopt);
  EXPECT_EQ(file.boolean("yes"), true);
  EXPECT_EQ(file.boolean("no"), false);
  EXPECT_EQ(file.boolean("u8"), std::nullopt);
  EXPECT_EQ(file.string("text"), "hello");
  EXPECT_EQ(file.string("absent"), std::nullopt);
  EXPECT_THAT(*file.integers("ints"), ElementsAre(7, -8));
  EXPECT_THAT(*file.numbers("floats"), ElementsAre(0.5));
  EXPECT_THAT(*file.strings("texts"), ElementsAre("a", "", "ccc"));
  EXPECT_TRUE(file.strings("none")->empty());
  EXPECT_EQ(file.strings("ints"), nullptr);
  EXPECT_EQ(std::get<std::vector<bool>>(file.find("bools")->value),
            (std::vector<bool>{true, false}));
}

TEST(Gguf, tensors_have_their_slowest_dimension_first_and_their_own_bytes) {
  GgufWriter w;
  w.tensor("one", {3}).tensor("two", {2, 5});
  w.tensors.push_back({"blocks", {32, 1, 2}, kGgmlQ4_0, w.data_bytes});
  w.data_bytes += 36;
  const std::string bytes = w.file();
  const auto header = parse(bytes);
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[1].name, "two");
  EXPECT_THAT(header->tensors[1].shape, ElementsAre(5, 2));
  EXPECT_EQ(header->tensors[1].end - header->tensors[1].begin, 40u);
  EXPECT_EQ(bytes[header->tensors[1].begin], 32);
  EXPECT_EQ(header->tensors[2].dtype, DType::kQ4_0);
  EXPECT_THAT(header->tensors[2].shape, ElementsAre(2, 1, 32));
  EXPECT_EQ(header->tensors[2].end, bytes.size());
}

TEST(Gguf, alignment_is_a_sensible_power_of_two) {
  for (const std::uint32_t wrong : {0u, 3u, 4u, 48u, 1u << 31}) {
    EXPECT_THAT(refusal(GgufWriter().u32("general.alignment", wrong)),
                HasSubstr("\"general.alignment\": " + std::to_string(wrong) + " is not a power"));
  }
  EXPECT_THAT(refusal(GgufWriter().text("general.alignment", "32")),
              HasSubstr("\"general.alignment\": it is not an integer"));
  GgufWriter w = one_tensor({8}, kGgmlF32, 64);
  EXPECT_EQ(refusal(w.u32("general.alignment", 64)), "accepted");
  w.tensors[0].offset = 32;
  EXPECT_THAT(refusal(w), HasSubstr("offset 32 is not a multiple of the alignment 64"));
}

TEST(Gguf, zero_dimensions_and_empty_names_are_refused) {
  EXPECT_THAT(refusal(one_tensor({4, 0})), HasSubstr("tensor \"t\": one of its sizes"));
  EXPECT_THAT(refusal(one_tensor({})), HasSubstr("0 dimensions"));
  EXPECT_THAT(refusal(one_tensor({1, 1, 1, 1, 1})), HasSubstr("5 dimensions"));
  EXPECT_THAT(refusal(one_tensor({std::uint64_t{1} << 63})), HasSubstr("one of its sizes"));
  EXPECT_THAT(refusal(GgufWriter().u32("", 1)), HasSubstr("empty name"));
  GgufWriter nameless = one_tensor({1});
  nameless.tensors[0].name = "";
  EXPECT_THAT(refusal(nameless), HasSubstr("empty name"));
}

TEST(Gguf, absurd_counts_are_refused_before_anything_is_allocated) {
  for (const std::uint64_t many : {std::uint64_t{1} << 20, ~std::uint64_t{0}}) {
    GgufWriter keys = one_tensor({1});
    keys.num_keys = many;
    EXPECT_THAT(refusal(keys), HasSubstr("keys"));
    GgufWriter tensors = one_tensor({1});
    tensors.num_tensors = many;
    EXPECT_THAT(refusal(tensors), HasSubstr("tensors"));
    EXPECT_THAT(refusal(GgufWriter().array("a", kGgufUint8, many, "x")),
                HasSubstr("key \"a\": an array of"));
    EXPECT_THAT(refusal(GgufWriter().array("a", kGgufString, many, gguf_string("x"))),
                HasSubstr("key \"a\": an array of"));
    EXPECT_THAT(refusal(GgufWriter().raw("s", kGgufString, little_endian(many))),
                HasSubstr("key \"s\": a string of"));
  }
}

TEST(Gguf, arrays_of_arrays_are_refused_by_name_however_deep) {
  std::string nested;
  for (int depth = 0; depth < 60000; ++depth) {
    nested += little_endian<std::uint32_t>(kGgufArray) + little_endian<std::uint64_t>(1);
  }
  EXPECT_THAT(refusal(GgufWriter().raw("deep", kGgufArray, nested), ErrorCode::kUnsupported),
              HasSubstr("key \"deep\": an array of arrays"));
}

TEST(Gguf, values_that_are_none_are_refused) {
  EXPECT_THAT(refusal(GgufWriter().raw("k", 13, "")), HasSubstr("value type 13"));
  EXPECT_THAT(refusal(GgufWriter().array("k", 13, 0, "")), HasSubstr("value type 13"));
  EXPECT_THAT(refusal(GgufWriter().raw("k", kGgufBool, "\2")), HasSubstr("2 is no truth value"));
  EXPECT_THAT(refusal(GgufWriter().array("k", kGgufUint64, 1, std::string(8, '\xff'))),
              HasSubstr("exceeds 2^63"));
}

TEST(Gguf, names_are_not_there_twice) {
  EXPECT_THAT(refusal(GgufWriter().u32("k", 1).u32("k", 1)), HasSubstr("key \"k\": it is there"));
  GgufWriter w = one_tensor({1});
  w.tensors.push_back({"t", {1}, kGgmlF32, 32});
  EXPECT_THAT(refusal(w), HasSubstr("tensor \"t\": it is there twice"));
}

TEST(Gguf, tensors_lie_inside_the_file_apart_and_aligned) {
  EXPECT_THAT(refusal(one_tensor({1}, kGgmlF32, 4)), HasSubstr("not a multiple of the alignment"));
  EXPECT_THAT(refusal(one_tensor({1}, kGgmlF32, 4096)), HasSubstr("is truncated: tensor \"t\""));
  EXPECT_THAT(refusal(one_tensor({1}, kGgmlF32, ~std::uint64_t{31})), HasSubstr("is truncated"));
  EXPECT_THAT(refusal(one_tensor({16}, kGgmlF32, ~std::uint64_t{31})), HasSubstr("overflows"));
  EXPECT_THAT(refusal(one_tensor({1025})), HasSubstr("incomplete download?"));
  GgufWriter w = one_tensor({16});
  w.tensors.push_back({"u", {1}, kGgmlF32, 32});
  EXPECT_THAT(refusal(w), HasSubstr("tensor \"u\": its bytes overlap those of \"t\""));
  w.tensors[1].offset = 0;
  EXPECT_THAT(refusal(w), HasSubstr("overlap"));
}

TEST(Gguf, element_counts_do_not_overflow) {
  const std::uint64_t big = std::uint64_t{1} << 32;
  EXPECT_THAT(refusal(one_tensor({big, big})), HasSubstr("overflows 2^63"));
  EXPECT_THAT(refusal(one_tensor({big, big / 4})), HasSubstr("overflows 2^63"));
  EXPECT_THAT(refusal(one_tensor({big, big, 1, 32}, kGgmlQ4_0)), HasSubstr("overflows 2^63"));
}

TEST(Gguf, rows_are_whole_blocks) {
  EXPECT_THAT(refusal(one_tensor({48, 2}, kGgmlQ4_0)),
              HasSubstr("tensor \"t\": its rows of 48 are not whole blocks of 32 (Q4_0)"));
}

TEST(Gguf, types_that_are_not_computed_are_refused_by_name) {
  for (const auto& [number, name] : {std::pair<std::uint32_t, const char*>{35, "TQ2_0"},
                                     {9, "Q8_1"},
                                     {41, "Q1_0"},
                                     {139, "number 139"}}) {
    EXPECT_THAT(refusal(one_tensor({256}, number), ErrorCode::kUnsupported),
                HasSubstr("tensor \"t\": ggml type " + std::string(name) + " is not supported"));
  }
}

TEST(Gguf, every_known_type_has_its_number) {
  const std::pair<std::uint32_t, DType> types[] = {
      {0, DType::kF32},      {1, DType::kF16},     {2, DType::kQ4_0},     {3, DType::kQ4_1},
      {6, DType::kQ5_0},     {7, DType::kQ5_1},    {8, DType::kQ8_0},     {10, DType::kQ2_K},
      {11, DType::kQ3_K},    {12, DType::kQ4_K},   {13, DType::kQ5_K},    {14, DType::kQ6_K},
      {16, DType::kIQ2_XXS}, {17, DType::kIQ2_XS}, {18, DType::kIQ3_XXS}, {19, DType::kIQ1_S},
      {20, DType::kIQ4_NL},  {21, DType::kIQ3_S},  {22, DType::kIQ2_S},   {23, DType::kIQ4_XS},
      {24, DType::kI8},      {25, DType::kI16},    {26, DType::kI32},     {27, DType::kI64},
      {28, DType::kF64},     {29, DType::kIQ1_M},  {30, DType::kBf16},    {39, DType::kMXFP4},
      {40, DType::kNVFP4}};
  for (const auto& [number, dtype] : types) {
    const auto header = parse(one_tensor({256}, number).file());
    ASSERT_TRUE(header) << header.error().message;
    EXPECT_EQ(header->tensors[0].dtype, dtype) << number;
  }
}

TEST(Gguf, other_versions_and_byte_orders_are_named) {
  for (const std::uint32_t version : {0u, 1u, 2u, 4u}) {
    GgufWriter w;
    w.version = version;
    EXPECT_THAT(refusal(w, ErrorCode::kUnsupported),
                HasSubstr("is GGUF version " + std::to_string(version)));
  }
  GgufWriter w;
  w.version = 0x03000000;
  EXPECT_THAT(refusal(w, ErrorCode::kUnsupported), HasSubstr("big-endian"));
}

TEST(Gguf, other_kinds_of_files_are_named) {
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(refusal("<!DOCTYPE html><html></html>"), HasSubstr("web page"));
  EXPECT_THAT(refusal("GGML and more"), HasSubstr("does not begin with \"GGUF\""));
  EXPECT_THAT(refusal("GG"), HasSubstr("does not begin with \"GGUF\""));
}

TEST(Gguf, every_prefix_of_a_file_is_refused) {
  GgufWriter w;
  w.text("general.architecture", "x").texts("list", {"one", "two"}).boolean("b", true);
  w.tensor("first", {2, 2}).tensor("second", {8});
  const std::string bytes = w.file();
  ASSERT_EQ(refusal(bytes), "accepted");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(refusal(bytes.substr(0, length)), "accepted") << length;
  }
}

TEST(Gguf, messages_stay_short_whatever_the_names) {
  refusal(GgufWriter().u32(std::string(60000, 'k'), 1).raw("x", 99, ""));
  refusal(GgufWriter().raw(std::string(60000, 'k'), 99, ""));
  EXPECT_THAT(refusal(GgufWriter().u32(std::string(70000, 'k'), 1)), HasSubstr("70000 bytes"));
}

// What GLM-4.7-Flash's tokenizer takes.
TEST(Gguf, a_vocabulary_of_real_size_is_read_well_within_a_second) {
  constexpr int kTokens = 154880, kMerges = 321649;
  std::vector<std::string> tokens, merges;
  std::string types;
  for (int i = 0; i < kTokens; ++i) {
    tokens.push_back("token" + std::to_string(i));
    types += little_endian<std::int32_t>(i % 6);
  }
  for (int i = 0; i < kMerges; ++i) merges.push_back("left" + std::to_string(i) + " right");
  GgufWriter w;
  w.texts("tokenizer.ggml.tokens", tokens).texts("tokenizer.ggml.merges", merges);
  w.array("tokenizer.ggml.token_type", kGgufInt32, kTokens, types);
  const std::string bytes = w.file();
  const double start = thread_cpu_seconds();
  const auto header = parse(bytes);
  const double took = thread_cpu_seconds() - start;
  ASSERT_TRUE(header) << header.error().message;
  const auto strings = [&](const char* key) {
    return std::get<std::vector<std::string_view>>(header->metadata.find(key)->second.value);
  };
  EXPECT_EQ(strings("tokenizer.ggml.tokens").size(), std::size_t{kTokens});
  EXPECT_EQ(strings("tokenizer.ggml.tokens").back(), tokens.back());
  EXPECT_EQ(strings("tokenizer.ggml.merges").size(), std::size_t{kMerges});
  EXPECT_EQ(strings("tokenizer.ggml.merges").back(), merges.back());
  EXPECT_LT(took, 0.5);
}

// ---- sets of shards

class GgufShards : public ::testing::Test {
 protected:
  static std::string name(int number, int count = 3) {
    char text[64];
    std::snprintf(text, sizeof text, "m-%05d-of-%05d.gguf", number, count);
    return text;
  }
  // Shard `number` of three, with one tensor.
  static GgufWriter shard(int number, std::uint16_t count = 3) {
    GgufWriter w;
    if (number == 1) w.text("general.architecture", "x");
    w.u16("split.no", static_cast<std::uint16_t>(number - 1)).u16("split.count", count);
    w.raw("split.tensors.count", kGgufInt32, little_endian<std::int32_t>(3));
    w.tensor("t" + std::to_string(number), {static_cast<std::uint64_t>(number)});
    return w;
  }
  void write(int number, const GgufWriter& w) { folder_.write(name(number), w.file()); }
  void write_all() {
    for (const int number : {1, 2, 3}) write(number, shard(number));
  }
  std::string refusal(int number, ErrorCode code) {
    const auto opened = GgufFile::open(folder_.path() / name(number));
    if (opened) return "accepted";
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    return opened.error().message;
  }
  TempFolder folder_;
};

TEST_F(GgufShards, any_shard_opens_the_whole_set) {
  write_all();
  for (const int number : {1, 2, 3}) {
    const auto opened = GgufFile::open(folder_.path() / name(number));
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ((*opened)->path(), folder_.path() / name(1));
    EXPECT_THAT((*opened)->files(), ElementsAre(name(1), name(2), name(3)));
    EXPECT_EQ((*opened)->string("general.architecture"), "x");
    ASSERT_EQ((*opened)->tensors().size(), 3u);
    EXPECT_EQ((*opened)->tensors()[2].name, "t3");
    EXPECT_EQ((*opened)->tensors()[2].bytes.size(), 12u);
    EXPECT_EQ((*opened)->tensors()[2].file->path(), folder_.path() / name(3));
  }
}

TEST_F(GgufShards, missing_shards_are_all_listed) {
  write(2, shard(2));
  EXPECT_THAT(refusal(2, ErrorCode::kNotFound),
              AllOf(HasSubstr("2 of 3 shards are missing"), HasSubstr(name(1) + ", " + name(3)),
                    HasSubstr("incomplete download?")));
}

TEST_F(GgufShards, a_shard_under_another_name_says_so) {
  const fs::path path = folder_.write("renamed.gguf", shard(2).file());
  const auto opened = GgufFile::open(path);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message,
              AllOf(HasSubstr("shard 2 of 3 by its metadata"), HasSubstr("-00002-of-00003.gguf")));
}

TEST_F(GgufShards, shards_of_different_sets_do_not_mix) {
  write_all();
  write(2, shard(3));
  EXPECT_THAT(refusal(1, ErrorCode::kCorrupt), HasSubstr("is not shard 2 of 3 by its metadata"));
  write(2, shard(2, 4));
  EXPECT_THAT(refusal(1, ErrorCode::kCorrupt), HasSubstr("is not shard 2 of 3 by its metadata"));
  write(2, shard(2).text("general.architecture", "y"));
  EXPECT_THAT(refusal(1, ErrorCode::kCorrupt), HasSubstr("\"general.architecture\" differs"));
  write(2, GgufWriter().tensor("t2", {1}));
  EXPECT_THAT(refusal(1, ErrorCode::kCorrupt), HasSubstr("is not shard 2 of 3"));
}

TEST_F(GgufShards, tensors_are_counted_and_in_one_shard_only) {
  write_all();
  write(3, shard(3).tensor("t2", {1}));
  EXPECT_THAT(refusal(1, ErrorCode::kCorrupt),
              AllOf(HasSubstr("tensor \"t2\" is both in"), HasSubstr(name(2)), HasSubstr(name(3))));
  write(3, shard(3).tensor("t4", {1}));
  EXPECT_THAT(refusal(1, ErrorCode::kCorrupt), HasSubstr("promises 3 tensors"));
  fs::remove(folder_.path() / name(3));
  folder_.write(name(3), shard(3).file().substr(0, 40));
  EXPECT_THAT(refusal(1, ErrorCode::kCorrupt), HasSubstr(name(3)));
}

TEST_F(GgufShards, absurd_split_keys_are_refused) {
  for (const std::uint32_t count : {70000u, ~0u}) {
    const fs::path path =
        folder_.write("m.gguf", GgufWriter().u32("split.count", count).tensor("t", {1}).file());
    const auto opened = GgufFile::open(path);
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr("\"split.count\" is not an integer from"));
  }
}

TEST_F(GgufShards, a_set_that_was_merged_is_one_file) {
  const fs::path path =
      folder_.write("m.gguf", GgufWriter().u16("split.count", 0).tensor("t", {1}).file());
  const auto opened = GgufFile::open(path);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_THAT((*opened)->files(), ElementsAre("m.gguf"));
}

TEST(Gguf, files_that_are_not_there_or_empty_are_named) {
  TempFolder folder;
  const auto absent = GgufFile::open(folder.path() / "absent.gguf");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  const auto empty = GgufFile::open(folder.write("empty.gguf", ""));
  ASSERT_FALSE(empty);
  EXPECT_THAT(empty.error().message, HasSubstr("empty.gguf is empty"));
}

}  // namespace
}  // namespace glint
