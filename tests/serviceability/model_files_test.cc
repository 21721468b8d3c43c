// What files tell beyond the config, and configs of GGUF files that glint does not run.
#include "serviceability/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "../base/temp_folder.h"
#include "configs.h"

namespace glint {
namespace {

using testing::HasSubstr;

std::filesystem::path data(const char* name) {
  return std::filesystem::path(GLINT_TEST_DATA) / name;
}

ModelFiles open(const std::filesystem::path& path) {
  const auto checkpoint = Checkpoint::open(path, false);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  return model_files_of(**checkpoint);
}

TEST(ModelFiles, a_config_is_enough) {
  const auto files = read_model_files(config_path("kimi-k3"));
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_EQ(files->facts.container, "config");
  EXPECT_EQ(*files->config.find("model_type"), Json("kimi_k3"));
  EXPECT_FALSE(read_model_files(data("no such file")));
}

TEST(ModelFiles, an_unlisted_mtp_file_is_seen) {
  EXPECT_TRUE(open(data("golden/glm4_moe_mtp_sidecar")).facts.mtp_unlisted);
  EXPECT_FALSE(open(data("golden/glm4_moe")).facts.mtp_unlisted);
}

TEST(ModelFiles, fp8_matrices_have_their_scales) {
  const CheckpointFacts facts = open(data("golden/glm4_moe_lite_fp8")).facts;
  EXPECT_EQ(facts.container, "safetensors");
  EXPECT_GT(facts.fp8_matrices, 0);
  EXPECT_EQ(facts.fp8_unpaired, 0);
  std::vector<TensorRef> tensors(2);
  tensors[0] = {"a.weight", DType::kF8E4M3, {1, 1}, {}, nullptr};
  tensors[1] = {"b.weight", DType::kF8E4M3, {1, 1}, {}, nullptr};
  tensors.push_back({"a.weight_scale_inv", DType::kF32, {1, 1}, {}, nullptr});
  const auto made = Checkpoint::of_tensors(std::move(tensors));
  const CheckpointFacts lone = model_files_of(*made).facts;
  EXPECT_EQ(lone.fp8_matrices, 2);
  EXPECT_EQ(lone.fp8_unpaired, 1);
  EXPECT_EQ(lone.fp8_example, "b.weight");
}

TEST(ModelFiles, a_gguf_header_is_a_config) {
  const auto files = read_model_files(data("gguf/variant-no_gating_func.gguf"));
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_EQ(files->facts.container, "gguf");
  EXPECT_EQ(files->facts.gguf_architecture, "deepseek2");
  EXPECT_TRUE(files->facts.gguf_lacks_gating);
  const ModelProfile read = profile_of(files->config);
  const ModelFiles strict = open(data("gguf/variant-no_gating_func.gguf"));
  const ModelProfile p = profile_of(strict.config);
  EXPECT_EQ(read.attention_class, "MLA");
  EXPECT_EQ(read.total_parameters.value(), p.total_parameters.value());
  EXPECT_EQ(read.layouts.front().bytes_per_token, p.layouts.front().bytes_per_token);
  EXPECT_FALSE(open(data("gguf/demo-q4_0.gguf")).facts.gguf_lacks_gating);
}

TEST(ModelFiles, a_gguf_header_of_heads_is_one_too) {
  const auto files = read_model_files(data("gguf/glm4_moe.gguf"));
  ASSERT_TRUE(files) << files.error().message;
  const ModelProfile p = profile_of(files->config);
  EXPECT_EQ(p.family, "glm4_moe");
  EXPECT_EQ(p.attention, AttentionKind::kGqa);
  EXPECT_EQ(p.layouts.front().bytes_per_token,
            profile_of(open(data("gguf/glm4_moe.gguf")).config).layouts.front().bytes_per_token);
}

}  // namespace
}  // namespace glint
