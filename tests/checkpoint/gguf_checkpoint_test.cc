// GGUF files as checkpoints: which path opens what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../base/temp_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "gguf_bytes.h"
#include "safetensors_bytes.h"

namespace glint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const fs::path kDemo = fs::path(GLINT_TEST_DATA) / "gguf/demo-q4_0.gguf";
const fs::path kVariant = fs::path(GLINT_TEST_DATA) / "gguf/variant-no_weights_scale.gguf";

class GgufCheckpoint : public ::testing::Test {
 protected:
  std::string refusal(const fs::path& path, ErrorCode code) {
    const auto opened = Checkpoint::open(path);
    if (opened) return "accepted";
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    return opened.error().message;
  }
  const fs::path& path() const { return folder_.path(); }
  void link(const fs::path& target, const fs::path& name) {
    fs::create_symlink(target, path() / name);
  }
  TempFolder folder_;
};

TEST_F(GgufCheckpoint, a_file_opens_in_the_terms_of_a_folder) {
  for (const bool weights_required : {true, false}) {
    const auto opened = Checkpoint::open(kDemo, weights_required);
    ASSERT_TRUE(opened) << opened.error().message;
    const Checkpoint& checkpoint = **opened;
    EXPECT_EQ(checkpoint.folder(), kDemo.parent_path());
    ASSERT_NE(checkpoint.gguf(), nullptr);
    EXPECT_EQ(checkpoint.gguf()->path(), kDemo);
    EXPECT_EQ(checkpoint.config().find("model_type")->as_string(), "glm4_moe_lite");
    EXPECT_EQ(checkpoint.generation_config().find("eos_token_id")->dump(), "[1515,1522,1524]");
    EXPECT_TRUE(checkpoint.has_weights());
    EXPECT_THAT(checkpoint.files(), ElementsAre("demo-q4_0.gguf"));
    EXPECT_THAT(checkpoint.notes(), IsEmpty());
    const TensorRef* expert = checkpoint.find("model.layers.3.mlp.experts.7.up_proj.weight");
    ASSERT_NE(expert, nullptr);
    EXPECT_EQ(expert->dtype, DType::kQ4_0);
    EXPECT_THAT(expert->shape, ElementsAre(96, 256));
    std::uint64_t nbytes = 0;
    for (const TensorRef& tensor : checkpoint.gguf()->tensors()) nbytes += tensor.bytes.size();
    EXPECT_EQ(checkpoint.total_bytes(), nbytes);
    EXPECT_THAT(checkpoint.why_missing("x"), HasSubstr("no tensor of"));
  }
}

TEST_F(GgufCheckpoint, what_was_assumed_is_noted) {
  const auto opened = Checkpoint::open(kVariant);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_THAT((*opened)->notes(), ElementsAre(HasSubstr("1.8 is assumed")));
}

TEST_F(GgufCheckpoint, the_content_decides_not_the_name) {
  link(kVariant, "blob");
  EXPECT_EQ(refusal(path() / "blob", ErrorCode::kInternal), "accepted");
  EXPECT_THAT(refusal(folder_.write("page.gguf", "<!DOCTYPE html><html>"), ErrorCode::kCorrupt),
              HasSubstr("page.gguf is a web page"));
  EXPECT_THAT(refusal(folder_.write("other.gguf", "anything else"), ErrorCode::kCorrupt),
              HasSubstr("other.gguf is not a GGUF file"));
  EXPECT_THAT(
      refusal(folder_.write("tensors.safetensors", file_with({"a"})), ErrorCode::kInvalidArgument),
      HasSubstr("give the model's folder"));
}

TEST_F(GgufCheckpoint, a_folder_with_one_gguf_model_is_that_model) {
  link(kVariant, "model.gguf");
  for (const bool with_config : {false, true}) {
    // Repositories of GGUF files often hold the original's config.json too.
    if (with_config) folder_.write("config.json", R"({"model_type":"other"})");
    const auto opened = Checkpoint::open(path());
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ((*opened)->folder(), path());
    EXPECT_NE((*opened)->gguf(), nullptr);
    EXPECT_EQ((*opened)->config().find("model_type")->as_string(), "glm4_moe_lite");
  }
}

TEST_F(GgufCheckpoint, a_folder_with_several_gguf_models_lists_them) {
  link(kVariant, "model-Q4_0.gguf");
  folder_.write("model-Q8_0-00001-of-00002.gguf", "GGUF");
  folder_.write("model-Q8_0-00002-of-00002.gguf", "GGUF");
  EXPECT_THAT(refusal(path(), ErrorCode::kInvalidArgument),
              AllOf(HasSubstr("holds 2 GGUF models: model-Q4_0.gguf, "
                              "model-Q8_0-00001-of-00002.gguf; give one of these files"),
                    Not(HasSubstr("00002-of-00002"))));
}

TEST_F(GgufCheckpoint, a_folder_with_shards_is_their_set) {
  folder_.write("m-00002-of-00002.gguf",
                GgufWriter().u16("split.no", 1).u16("split.count", 2).tensor("t", {1}).file());
  EXPECT_THAT(refusal(path(), ErrorCode::kNotFound),
              AllOf(HasSubstr("1 of 2 shards are missing"), HasSubstr("m-00001-of-00002.gguf")));
}

TEST_F(GgufCheckpoint, safetensors_win_over_gguf_files_beside_them) {
  link(kVariant, "model.gguf");
  folder_.write("config.json", R"({"model_type":"x"})");
  folder_.write("model.safetensors", file_with({"a"}));
  const auto opened = Checkpoint::open(path());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened)->gguf(), nullptr);
  EXPECT_NE((*opened)->find("a"), nullptr);
}

TEST_F(GgufCheckpoint, an_unknown_architecture_is_refused_with_the_list) {
  const std::string bytes =
      GgufWriter().text("general.architecture", "foo").tensor("t", {1}).file();
  EXPECT_THAT(refusal(folder_.write("m.gguf", bytes), ErrorCode::kUnsupported),
              HasSubstr("\"foo\" is not supported; supported: deepseek2, glm4moe"));
}

}  // namespace
}  // namespace glint
