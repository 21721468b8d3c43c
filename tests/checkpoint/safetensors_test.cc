#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "../base/cpu_time.h"
#include "../base/temp_folder.h"
#include "checkpoint/checkpoint.h"
#include "safetensors_bytes.h"

namespace glint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Result<std::vector<SafetensorsEntry>> parse(std::string_view file) {
  return parse_safetensors_header(as_bytes(file), file.size(), "shard.safetensors");
}

std::string refusal(std::string_view file, ErrorCode code = ErrorCode::kCorrupt) {
  const auto entries = parse(file);
  if (entries) return "accepted";
  EXPECT_EQ(entries.error().code, code) << entries.error().message;
  EXPECT_THAT(entries.error().message, HasSubstr("shard.safetensors"));
  return entries.error().message;
}

std::string refusal_of_header(std::string_view header, std::size_t data_bytes) {
  return refusal(safetensors_file(header, data_bytes));
}

TEST(Safetensors, entries_come_in_the_order_of_their_bytes_with_offsets_in_the_file) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," +
                             entry("b", "F32", "[1,2]", 4, 12) + "," +
                             entry("a", "BF16", "[2]", 0, 4) + "}   ";
  const auto entries = parse(safetensors_file(header, 12));
  ASSERT_TRUE(entries.has_value()) << entries.error().message;
  ASSERT_EQ(entries->size(), 2u);
  const SafetensorsEntry& a = (*entries)[0];
  const SafetensorsEntry& b = (*entries)[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::kBf16);
  EXPECT_EQ(a.begin, 8 + header.size());
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(b.begin, 8 + header.size() + 4);
  EXPECT_EQ(b.end, 8 + header.size() + 12);
}

TEST(Safetensors, mapped_tensors_see_their_own_bytes) {
  TempFolder folder;
  const auto path = folder.write(
      "m.safetensors",
      safetensors_file(
          "{" + entry("a", "U8", "[3]", 0, 3) + "," + entry("b", "U8", "[2]", 3, 5) + "}", 5));
  std::vector<TensorRef> tensors;
  {
    auto file = MappedFile::open(path);
    ASSERT_TRUE(file.has_value());
    auto parsed = parse_safetensors(std::move(*file));
    ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
    tensors = std::move(*parsed);
  }
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[1].bytes.size(), 2u);
  EXPECT_EQ(tensors[1].bytes[0], std::byte{3});
  EXPECT_EQ(tensors[1].bytes[1], std::byte{4});
}

TEST(Safetensors, empty_files_scalars_and_empty_tensors_are_fine) {
  EXPECT_EQ(refusal_of_header("{}", 0), "accepted");
  EXPECT_EQ(refusal_of_header("{\"__metadata__\":null}", 0), "accepted");
  EXPECT_EQ(refusal_of_header("{" + entry("scalar", "F32", "[]", 0, 4) + "}", 4), "accepted");
  const std::string header = "{" + entry("full", "U8", "[2]", 0, 2) + "," +
                             entry("none", "F32", "[0,7]", 0, 0) + "," +
                             entry("last", "F32", "[3,0]", 2, 2) + "}";
  EXPECT_EQ(refusal_of_header(header, 2), "accepted");
}

TEST(Safetensors, every_dtype_of_the_list_is_sized_right) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::size_t nbytes = 3 * dtype_bytes(dtype);
    EXPECT_EQ(
        refusal_of_header("{" + entry("t", dtype_name(dtype), "[3]", 0, nbytes) + "}", nbytes),
        "accepted");
    EXPECT_THAT(refusal_of_header("{" + entry("t", dtype_name(dtype), "[3]", 0, nbytes + 1) + "}",
                                  nbytes + 1),
                HasSubstr("\"t\""));
  }
}

TEST(Safetensors, absurd_header_lengths_are_refused) {
  for (const std::uint64_t length :
       {std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{0} - 7, std::uint64_t{1} << 40,
        std::uint64_t{100'000'001}}) {
    EXPECT_THAT(refusal(length_prefix(length) + "{}"),
                HasSubstr("claims " + std::to_string(length)));
  }
  EXPECT_THAT(refusal(length_prefix(3) + "{}"), HasSubstr("truncated"));
  EXPECT_THAT(refusal(length_prefix(99'999'999) + "{}"), HasSubstr("truncated"));
  EXPECT_THAT(refusal(length_prefix(0)), HasSubstr("no JSON object"));
}

TEST(Safetensors, every_truncation_is_refused) {
  const std::string whole = file_with({"a", "b"});
  ASSERT_EQ(refusal(whole), "accepted");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(refusal(std::string_view(whole).substr(0, size)), "accepted") << size;
  }
  EXPECT_THAT(refusal(std::string_view(whole).substr(0, whole.size() - 1)),
              AllOf(HasSubstr("truncated"), HasSubstr("\"b\""), HasSubstr("incomplete download?")));
}

TEST(Safetensors, bytes_that_belong_to_no_tensor_are_refused) {
  EXPECT_THAT(refusal(file_with({"a"}) + "x"), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(refusal_of_header("{}", 3), HasSubstr("3 bytes after the last tensor"));
  EXPECT_THAT(
      refusal_of_header(
          "{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("b", "U8", "[1]", 3, 4) + "}", 4),
      AllOf(HasSubstr("\"b\""), HasSubstr("2 bytes before it")));
  EXPECT_THAT(refusal_of_header("{" + entry("a", "U8", "[1]", 1, 2) + "}", 2),
              HasSubstr("1 bytes before it"));
}

TEST(Safetensors, overlapping_tensors_are_refused_by_both_names) {
  EXPECT_THAT(
      refusal_of_header(
          "{" + entry("a", "U8", "[4]", 0, 4) + "," + entry("b", "U8", "[4]", 2, 6) + "}", 6),
      AllOf(HasSubstr("\"a\""), HasSubstr("\"b\""), HasSubstr("overlap")));
  EXPECT_THAT(
      refusal_of_header(
          "{" + entry("a", "U8", "[4]", 0, 4) + "," + entry("b", "U8", "[4]", 0, 4) + "}", 4),
      HasSubstr("overlap"));
}

TEST(Safetensors, offsets_outside_the_file_or_backwards_are_refused) {
  EXPECT_THAT(refusal_of_header("{" + entry("a", "U8", "[4]", 0, 4) + "}", 3),
              HasSubstr("truncated"));
  EXPECT_THAT(refusal_of_header("{" + entry("a", "U8", "[4]", 4, 0) + "}", 4),
              HasSubstr("end before they begin"));
  const std::string far = std::to_string((std::uint64_t{1} << 63) - 1);
  EXPECT_THAT(
      refusal_of_header(
          R"({"a":{"dtype":"U8","shape":[)" + far + R"(],"data_offsets":[0,)" + far + "]}}", 4),
      HasSubstr("truncated"));
}

TEST(Safetensors, offsets_of_other_types_are_refused) {
  for (const char* offsets : {"[0]", "[0,1,2]", "[-1,0]", "[0,18446744073709551615]", "[0,1.0]",
                              "\"01\"", "null", "[\"0\",\"1\"]", "{}"}) {
    EXPECT_THAT(
        refusal_of_header(
            std::string(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":)") + offsets + "}}", 1),
        AllOf(HasSubstr("\"a\""), HasSubstr("data_offsets")))
        << offsets;
  }
}

TEST(Safetensors, shapes_with_negative_huge_or_wrong_sizes_are_refused) {
  for (const char* shape : {"[-1]", "[1.0]", "[\"1\"]", "[18446744073709551615]", "[[1]]", "null",
                            "1", "[4294967296,4294967296]", "[9223372036854775807,2]",
                            "[0,9223372036854775807,9223372036854775807]",
                            "[9223372036854775807,9223372036854775807,0]"}) {
    EXPECT_THAT(refusal_of_header("{" + entry("a", "F32", shape, 0, 0) + "}", 0),
                AllOf(HasSubstr("\"a\""), HasSubstr("shape")))
        << shape;
  }
}

TEST(Safetensors, a_size_that_contradicts_shape_and_dtype_is_refused_with_both_numbers) {
  EXPECT_THAT(refusal_of_header("{" + entry("a", "BF16", "[3]", 0, 4) + "}", 4),
              AllOf(HasSubstr("need 6 bytes"), HasSubstr("hold 4")));
}

TEST(Safetensors, unknown_dtypes_are_refused_and_known_but_unread_ones_named_so) {
  EXPECT_THAT(refusal_of_header("{" + entry("a", "F33", "[1]", 0, 4) + "}", 4),
              AllOf(HasSubstr("\"a\""), HasSubstr("unknown dtype \"F33\"")));
  EXPECT_THAT(refusal(safetensors_file("{" + entry("a", "F8_E5M2FNUZ", "[4]", 0, 4) + "}", 4),
                      ErrorCode::kUnsupported),
              HasSubstr("F8_E5M2FNUZ is not supported"));
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("no dtype"));
}

TEST(Safetensors, duplicate_names_are_refused) {
  EXPECT_THAT(
      refusal_of_header(
          "{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("a", "U8", "[1]", 1, 2) + "}", 2),
      HasSubstr("\"a\""));
  EXPECT_NE(
      refusal_of_header(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
      "accepted");
}

TEST(Safetensors, headers_that_are_no_proper_json_are_refused) {
  for (const char* header :
       {" {}", "[]", "{", "{}{}", "{\"a\":1}", "{\"a\":null}", "{\"a\":{}}", "{\"__metadata__\":1}",
        "{\"__metadata__\":{\"a\":1}}", "{\"\xff\":1}", "{\"a\":[[[[[[[[[[1]]]]]]]]]]}"}) {
    EXPECT_NE(refusal_of_header(header, 0), "accepted") << header;
  }
  EXPECT_NE(refusal(length_prefix(4) + std::string("{}\0x", 4)), "accepted");
}

TEST(Safetensors, messages_stay_short_whatever_the_names) {
  EXPECT_LT(
      refusal_of_header("{" + entry(std::string(100000, 'n'), "F33", "[1]", 0, 4) + "}", 4).size(),
      600u);
}

TEST(Safetensors, other_kinds_of_files_are_named) {
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
              AllOf(HasSubstr("git-lfs"), HasSubstr("git lfs pull")));
  EXPECT_THAT(refusal("<!DOCTYPE html><html><body>Access denied</body></html>"),
              HasSubstr("web page"));
  EXPECT_THAT(refusal("\n  <HTML><head></head></HTML>"), HasSubstr("web page"));
  EXPECT_THAT(refusal(std::string("GGUF\x03\0\0\0\0\0\0\0", 12), ErrorCode::kUnsupported),
              HasSubstr("is a GGUF file under another format's name"));
  EXPECT_THAT(refusal(std::string("PK\x03\x04\0\0\x08\x08\0\0\0\0", 12), ErrorCode::kUnsupported),
              HasSubstr("pickle"));
  EXPECT_THAT(refusal("\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j", ErrorCode::kUnsupported),
              HasSubstr("pickle"));
}

TEST(Safetensors, a_header_length_that_looks_like_a_pickle_is_still_a_header) {
  std::string header = "{}";
  header.resize(0x10280, ' ');
  EXPECT_EQ(refusal_of_header(header, 0), "accepted");
}

TEST(Safetensors, a_header_of_9000_tensors_parses_well_within_a_second) {
  std::vector<std::string> names;
  for (int i = 0; i < 9000; ++i) {
    names.push_back("model.layers." + std::to_string(i / 200) + ".mlp.experts." +
                    std::to_string(i % 200) + ".gate_proj.weight");
  }
  const std::string file = file_with(names);
  const double start = thread_cpu_seconds();
  const auto entries = parse(file);
  const double took = thread_cpu_seconds() - start;
  ASSERT_TRUE(entries.has_value()) << entries.error().message;
  EXPECT_EQ(entries->size(), 9000u);
  EXPECT_LT(took, 0.5);
}

}  // namespace
}  // namespace glint
