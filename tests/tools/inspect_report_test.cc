// Profiles against what the families of glint say of themselves; GPUs by name; wrapped text.
#include "tools/inspect_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/json_file.h"
#include "models/registry.h"
#include "tools/text_sheet.h"

namespace glint {
namespace {

Json load(const std::string& path) {
  auto json = read_json_object(std::filesystem::path(GLINT_TEST_DATA) / path);
  EXPECT_TRUE(json) << json.error().message;
  return json ? std::move(*json) : Json(Json::Object{});
}

TEST(Profile, agrees_with_the_families_that_run) {
  for (const char* path :
       {"configs/glm-4.7-flash.json", "configs/glm-4.5.json", "configs/glm-4.5-air.json",
        "configs/glm-5.3-flash.json", "golden/glm4_moe_lite/config.json",
        "golden/glm4_moe/config.json", "golden/glm4_moe_noqknorm/config.json",
        "golden/glm5_next/config.json", "golden/glm5_next_shared/config.json"}) {
    const Json config = load(path);
    const auto info = describe_model(*Checkpoint::of_config(config));
    const auto profile = read_profile(config);
    ASSERT_TRUE(info) << path << info.error().message;
    ASSERT_TRUE(profile) << path << profile.error().message;
    EXPECT_EQ(profile->total_parameters.value(), info->total_parameters) << path;
    EXPECT_EQ(profile->active_parameters.value(), info->active_parameters) << path;
    EXPECT_EQ(profile->attention_class, info->attention_class) << path;
    EXPECT_EQ(profile->name, info->family) << path;
    EXPECT_EQ(profile->family, info->model_type) << path;
    EXPECT_EQ(profile->layers, info->num_layers) << path;
    EXPECT_EQ(profile->heads, info->num_heads) << path;
    EXPECT_EQ(profile->kv_heads, info->num_kv_heads) << path;
    EXPECT_EQ(profile->context.positions, info->max_position_embeddings) << path;
    EXPECT_EQ(profile->mtp_layers, info->mtp_layers) << path;
    EXPECT_EQ(profile->experts, info->num_experts) << path;
  }
}

TEST(Profile, counts_the_cache_of_released_models_as_the_families_do) {
  for (const char* path : {"configs/glm-4.7-flash.json", "configs/glm-4.5.json",
                           "configs/glm-4.5-air.json", "configs/glm-5.3-flash.json"}) {
    const Json config = load(path);
    const auto info = describe_model(*Checkpoint::of_config(config));
    const auto profile = read_profile(config);
    ASSERT_TRUE(info && profile) << path;
    InspectReport report;
    report.info = *info;
    EXPECT_EQ(profile->layouts.front().bytes_per_token,
              static_cast<double>(report.bytes_per_token()))
        << path;
    // Its fp8 and fp4 too, but for the keys of indexers, which stay in bf16.
    if (info->cache.fp8 && profile->index_layers == 0) {
      EXPECT_EQ(profile->layouts[1].name, "fp8");
      EXPECT_EQ(profile->layouts[1].bytes_per_token,
                static_cast<double>(info->cache.fp8->bytes_per_token()))
          << path;
    }
    // A sequence carries what its last pool may still need besides.
    EXPECT_LE(profile->state_bytes.value(), report.cache().state_bytes) << path;
    EXPECT_GE(1.02 * static_cast<double>(profile->state_bytes.value()),
              static_cast<double>(report.cache().snapshot_bytes))
        << path;
  }
}

TEST(Profile, counts_a_vision_tower_as_its_tensors_do) {
  const auto folder = std::filesystem::path(GLINT_TEST_DATA) / "golden" / "glm5_next";
  const auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto info = describe_model(**checkpoint);
  const auto profile = read_profile((*checkpoint)->config());
  ASSERT_TRUE(info && profile && info->images);
  EXPECT_EQ(profile->vision_parameters.value(), info->images->parameters);
}

TEST(Gpu, is_told_by_name_or_capability) {
  EXPECT_EQ(*parse_gpu("sm120"), 120);
  EXPECT_EQ(*parse_gpu("SM_90"), 90);
  EXPECT_EQ(*parse_gpu("10.3"), 103);
  EXPECT_EQ(*parse_gpu("H200"), 90);
  EXPECT_EQ(*parse_gpu("RTX PRO 6000"), 120);
  for (const char* text : {"", "sm", "sm9", "fast", "999999999999999999999", "-90x"})
    EXPECT_FALSE(parse_gpu(text)) << text;
}

TEST(TextSheet, wraps_words_under_their_start) {
  TextSheet sheet(40);
  sheet.title("Title");
  sheet.line("Label", "one two three four five six seven eight");
  sheet.item("a point of a list that is longer than a line");
  sheet.title("Next");
  EXPECT_EQ(sheet.text(),
            "Title\n"
            "  Label        one two three four five\n"
            "               six seven eight\n"
            "    - a point of a list that is longer\n"
            "      than a line\n"
            "\nNext\n");
  TextSheet whole(0);
  whole.line("", std::string(200, 'x') + " y");
  EXPECT_EQ(whole.text(), std::string(15, ' ') + std::string(200, 'x') + " y\n");
}

}  // namespace
}  // namespace glint
