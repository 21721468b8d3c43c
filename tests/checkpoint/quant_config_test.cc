// What configs say of quantisation, and which of it is refused.
#include "checkpoint/quant_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../base/temp_folder.h"
#include "checkpoint/checkpoint.h"
#include "safetensors_bytes.h"

namespace glint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Result<QuantConfig> parse(const char* text) {
  return parse_quant_config(*parse_json(text), "where");
}

QuantConfig good(const char* text) {
  auto config = parse(text);
  EXPECT_TRUE(config.has_value()) << config.error().message;
  return config ? *config : QuantConfig{};
}

TEST(QuantConfig, fp8_has_blocks) {
  const QuantConfig config = good(
      R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,64],
          "modules_to_not_convert":["lm_head","re:.*gate$"]})");
  EXPECT_EQ(config.method, "fp8");
  EXPECT_THAT(config.schemes, ElementsAre("FP8"));
  EXPECT_THAT(config.f8_blocks, ElementsAre(Pair(128u, 64u)));
}

TEST(QuantConfig, modelopt_in_all_its_spellings) {
  for (const char* method : {"modelopt", "modelopt_fp4", "ModelOpt"}) {
    Json json = *parse_json(R"({"quant_algo":"NVFP4","group_size":16,"ignore":["lm_head"],
                                "kv_cache_scheme":{"num_bits":8,"type":"float"}})");
    json.set("quant_method", method);
    const auto config = parse_quant_config(json, "where");
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_THAT(config->schemes, ElementsAre("NVFP4"));
  }
  EXPECT_THAT(good(R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"FP8",
                       "kv_cache_quant_algo":"FP8","exclude_modules":["lm_head"]}})")
                  .schemes,
              ElementsAre("FP8"));
  EXPECT_THAT(good(R"({"quant_method":"modelopt_mixed","quant_algo":"MIXED_PRECISION",
                       "quantized_layers":{"a":{"quant_algo":"FP8"},"b":{"quant_algo":"NVFP4"}}})")
                  .schemes,
              ElementsAre("FP8", "NVFP4"));
}

TEST(QuantConfig, compressed_tensors_groups) {
  const QuantConfig config =
      good(R"({"quant_method":"compressed-tensors","format":"mixed-precision",
      "ignore":["re:.*gate$","lm_head"],"quantization_status":"compressed","config_groups":{
      "a":{"format":"pack-quantized","targets":["re:.*experts.*"],"weights":{"num_bits":4,"type":"int",
           "symmetric":false,"strategy":"group","group_size":128,"actorder":null}},
      "b":{"format":"float-quantized","targets":["Linear"],"input_activations":{"dynamic":true},
           "weights":{"num_bits":8,"type":"float","strategy":"block","block_structure":[128,128]}},
      "c":{"format":"nvfp4-pack-quantized","weights":{"num_bits":4,"type":"float","group_size":16,
           "strategy":"tensor_group"}}}})");
  EXPECT_THAT(config.schemes, ElementsAre("INT4", "FP8", "NVFP4"));
  EXPECT_THAT(config.groups, ElementsAre(128u, 16u));
  EXPECT_THAT(config.f8_blocks, ElementsAre(Pair(128u, 128u)));
  EXPECT_EQ(config.symmetric, false);
}

TEST(QuantConfig, groups_that_differ_settle_no_symmetry) {
  EXPECT_EQ(good(R"({"quant_method":"compressed-tensors","config_groups":{
      "a":{"weights":{"num_bits":4,"type":"int","symmetric":false}},
      "b":{"weights":{"num_bits":8,"type":"int","symmetric":true}}}})")
                .symmetric,
            std::nullopt);
}

TEST(QuantConfig, awq_and_gptq) {
  const QuantConfig awq = good(R"({"quant_method":"awq","bits":4,"group_size":128,"version":"GEMM",
                                   "zero_point":true,"modules_to_not_convert":["gate"]})");
  EXPECT_EQ(awq.bits, 4);
  EXPECT_THAT(awq.groups, ElementsAre(128u));
  EXPECT_TRUE(good(R"({"quant_method":"gptq","bits":4,"group_size":-1})").gptq_zeros_less_one);
  EXPECT_FALSE(good(R"({"quant_method":"gptq","bits":8,"checkpoint_format":"gptq_v2"})")
                   .gptq_zeros_less_one);
}

TEST(QuantConfig, what_is_not_read_is_refused_by_name) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"quant_method":"bitsandbytes"})", "bitsandbytes"},
      {R"({"quant_method":"hqq"})", "compressed-tensors"},  // lists what is
      {R"({"quant_method":7})", "7"},
      {R"({"bits":4})", "quant_method"},
      {R"({"quant_method":"fp8","fmt":"e5m2"})", "e5m2"},
      {R"({"quant_method":"fp8","weight_block_size":[0,128]})", "weight_block_size"},
      {R"({"quant_method":"fp8","weight_block_size":[1e9,128]})", "weight_block_size"},
      {R"({"quant_method":"fp8","weight_block_size":128})", "weight_block_size"},
      {R"({"quant_method":"fp8","modules_to_not_convert":[1]})", "modules_to_not_convert"},
      {R"({"quant_method":"modelopt","quant_algo":"W4A8_AWQ"})", "W4A8_AWQ"},
      {R"({"quant_method":"modelopt","quant_algo":"INT4_AWQ"})", "INT4_AWQ"},
      {R"({"quant_method":"modelopt_mixed","quantized_layers":{"a":{"quant_algo":"W8A8_SQ"}}})",
       "W8A8_SQ"},
      {R"({"quant_method":"compressed-tensors","format":"marlin-24"})", "marlin-24"},
      {R"({"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24-bitmask"}})",
       "sparse-24-bitmask"},
      {R"({"quant_method":"compressed-tensors","transform_config":{"config_groups":{"u":{}}}})",
       "transform_config"},
      {R"({"quant_method":"compressed-tensors","config_groups":{"g":{"weights":{"num_bits":3}}}})",
       "num_bits"},
      {R"({"quant_method":"compressed-tensors","config_groups":{"g":{"weights":{"strategy":"attn"}}}})",
       "strategy"},
      {R"({"quant_method":"compressed-tensors","config_groups":{"g":{"weights":{"dynamic":true}}}})",
       "dynamic"},
      {R"({"quant_method":"compressed-tensors","config_groups":{"g":{"format":"new"}}})", "new"},
      {R"({"quant_method":"compressed-tensors","config_groups":[]})", "config_groups"},
      {R"({"quant_method":"awq","bits":3})", "bits"},
      {R"({"quant_method":"awq","version":"gemv"})", "gemv"},
      {R"({"quant_method":"awq","zero_point":false})", "zero_point"},
      {R"({"quant_method":"gptq","bits":2})", "bits"},
      {R"({"quant_method":"gptq","bits":3})", "bits"},
      {R"({"quant_method":"gptq","checkpoint_format":"marlin"})", "marlin"},
      {R"({"quant_method":"gptq","group_size":0})", "group_size"},
      {"[]", "object"},
  };
  for (const auto& [text, named] : cases) {
    const auto config = parse(text);
    ASSERT_FALSE(config.has_value()) << text;
    EXPECT_THAT(config.error().message, AllOf(HasSubstr("where"), HasSubstr(named)));
  }
}

TEST(QuantConfig, comes_from_the_first_place_that_has_one) {
  TempFolder folder;
  folder.write("model.safetensors", file_with({"a"}));
  const auto method = [&](const char* config) {
    folder.write("config.json", config);
    const auto checkpoint = Checkpoint::open(folder.path());
    EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const auto read = read_quant_config(**checkpoint);
    return read ? read->method : read.error().message;
  };
  EXPECT_EQ(method("{}"), "");
  folder.write("hf_quant_config.json",
               R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"NVFP4"}})");
  EXPECT_EQ(method("{}"), "modelopt");
  EXPECT_EQ(method(R"({"text_config":{"quantization_config":{"quant_method":"awq"}}})"), "awq");
  EXPECT_EQ(method(R"({"quantization_config":{"quant_method":"gptq"},
                       "text_config":{"quantization_config":{"quant_method":"awq"}}})"),
            "gptq");
  EXPECT_THAT(method(R"({"quantization_config":{"quant_method":"eetq"}})"),
              AllOf(HasSubstr("\"quantization_config\""), HasSubstr("eetq")));
}

TEST(QuantConfig, schemes_that_it_does_not_declare_are_told) {
  const QuantConfig fp8 = good(R"({"quant_method":"modelopt","quant_algo":"FP8"})");
  EXPECT_EQ(undeclared_schemes(fp8, {"FP8"}), "");
  EXPECT_THAT(undeclared_schemes(fp8, {"FP8", "NVFP4"}),
              AllOf(HasSubstr("declares FP8"), HasSubstr("NVFP4")));
  EXPECT_THAT(undeclared_schemes({}, {"FP8"}), HasSubstr("FP8"));
  EXPECT_EQ(undeclared_schemes({}, {}), "");
}

}  // namespace
}  // namespace glint
