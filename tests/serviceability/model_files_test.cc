// What files tell beyond the config, and configs of GGUF files that glint does not run.
#include "serviceability/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "../base/temp_folder.h"
#include "../checkpoint/gguf_bytes.h"
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

// What llama.cpp's converter writes of GLM-5 (architecture glm-dsa), which glint does not run.
TEST(ModelFiles, a_gguf_header_of_an_architecture_that_does_not_run_is_one_too) {
  GgufWriter writer;
  const std::string a = "glm-dsa.";
  writer.text("general.architecture", "glm-dsa").u32(a + "block_count", 79);
  writer.u32(a + "nextn_predict_layers", 1).u32(a + "embedding_length", 6144);
  writer.u32(a + "context_length", 202752).u32(a + "vocab_size", 154880);
  writer.u32(a + "feed_forward_length", 12288).u32(a + "expert_feed_forward_length", 2048);
  writer.u32(a + "expert_count", 256).u32(a + "expert_used_count", 8);
  writer.u32(a + "expert_shared_count", 1).u32(a + "leading_dense_block_count", 3);
  writer.u32(a + "expert_gating_func", 2);
  writer.u32(a + "attention.head_count", 64).u32(a + "attention.head_count_kv", 1);
  writer.u32(a + "attention.q_lora_rank", 2048).u32(a + "attention.kv_lora_rank", 512);
  writer.u32(a + "attention.key_length", 576).u32(a + "attention.value_length", 512);
  writer.u32(a + "attention.key_length_mla", 256).u32(a + "attention.value_length_mla", 256);
  writer.u32(a + "rope.dimension_count", 64).u32(a + "attention.indexer.head_count", 32);
  writer.u32(a + "attention.indexer.key_length", 128).u32(a + "attention.indexer.top_k", 2048);
  const TempFolder folder;
  const auto path = folder.path() / "GLM-5.gguf";
  std::ofstream(path, std::ios::binary) << writer.file();
  EXPECT_FALSE(Checkpoint::open(path, false));
  const auto files = read_model_files(path);
  ASSERT_TRUE(files) << files.error().message;
  const ModelProfile p = profile_of(files->config), released = profile_of("glm-5");
  EXPECT_EQ(p.family, "glm_moe_dsa");
  EXPECT_EQ(p.total_parameters.value(), released.total_parameters.value());
  EXPECT_EQ(p.layouts.front().with_mtp, released.layouts.front().with_mtp);
}

}  // namespace
}  // namespace glint
