// What is written is what parse_safetensors reads.
#include "tools/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <fstream>

#include "checkpoint/checkpoint.h"

namespace glint {
namespace {

class SafetensorsWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "glint-writer-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      found.push_back(entry.path());
    return found;
  }
  std::filesystem::path folder_;
};

TEST_F(SafetensorsWriterTest, tensors_come_back_with_dtype_shape_and_bytes) {
  const std::filesystem::path path = folder_ / "out.safetensors";
  auto writer = SafetensorsWriter::create(path, {{"logits.\"p0\"", DType::kF32, {2, 3}},
                                                 {"greedy.p0", DType::kI64, {2}},
                                                 {"none", DType::kF32, {0, 4}}});
  ASSERT_TRUE(writer) << writer.error().message;
  const float rows[6] = {1, 2, 3, 4, 5, 6};
  const std::int64_t ids[2] = {7, -8};
  const auto bytes = std::as_bytes(std::span(rows));
  ASSERT_TRUE((*writer)->write("logits.\"p0\"", 12, bytes.subspan(12)));
  ASSERT_TRUE((*writer)->write("greedy.p0", 0, std::as_bytes(std::span(ids))));
  ASSERT_TRUE((*writer)->write("logits.\"p0\"", 0, bytes.first(12)));
  ASSERT_TRUE((*writer)->finish());

  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file) << file.error().message;
  const auto tensors = parse_safetensors(*file);
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 3u);
  for (const TensorRef& tensor : *tensors) {
    if (tensor.name == "none") {
      EXPECT_TRUE(tensor.bytes.empty());
    } else if (tensor.name == "greedy.p0") {
      EXPECT_EQ(tensor.dtype, DType::kI64);
      EXPECT_THAT(tensor.shape, testing::ElementsAre(2));
      EXPECT_EQ(std::memcmp(tensor.bytes.data(), ids, sizeof ids), 0);
    } else {
      EXPECT_EQ(tensor.name, "logits.\"p0\"");
      EXPECT_EQ(tensor.dtype, DType::kF32);
      EXPECT_THAT(tensor.shape, testing::ElementsAre(2, 3));
      EXPECT_EQ(std::memcmp(tensor.bytes.data(), rows, sizeof rows), 0);
    }
  }
  EXPECT_THAT(files(), testing::ElementsAre(path));
}

TEST_F(SafetensorsWriterTest, what_is_not_finished_leaves_nothing_behind) {
  std::ofstream(folder_ / "out.safetensors") << "older";
  {
    auto writer = SafetensorsWriter::create(folder_ / "out.safetensors", {{"a", DType::kF32, {4}}});
    ASSERT_TRUE(writer);
  }
  ASSERT_EQ(files().size(), 1u);
  std::string text;
  std::ifstream(folder_ / "out.safetensors") >> text;
  EXPECT_EQ(text, "older");
}

TEST_F(SafetensorsWriterTest, a_name_twice_and_a_missing_folder_are_errors) {
  const auto twice =
      SafetensorsWriter::create(folder_ / "x", {{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}});
  ASSERT_FALSE(twice);
  EXPECT_THAT(twice.error().message, testing::HasSubstr("two tensors are named a"));
  const auto nowhere = SafetensorsWriter::create(folder_ / "no" / "x", {});
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace glint
