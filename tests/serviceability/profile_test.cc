// Profiles of released models against the figures that are published of them.
#include "serviceability/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "configs.h"

namespace glint {
namespace {

using testing::HasSubstr;

double format(const ModelProfile& p, std::string_view name, bool mtp = false) {
  for (const CacheLayout& layout : p.layouts) {
    if (layout.name == name) return mtp ? layout.with_mtp : layout.bytes_per_token;
  }
  return -1;
}

struct CacheCase {
  const char* model;
  double bf16, with_mtp, fp8, fp4;
  std::uint64_t state, window;
};

TEST(CacheBytes, of_a_token_are_those_of_the_released_configs) {
  const CacheCase cases[] = {
      {"glm-4.7-flash", 54144, 55296, 47 * 594, 47 * 324, 0, 0},
      {"glm-4.5", 376832, 380928, 92 * 2112, 92 * 1152, 0, 0},
      {"glm-4.5-air", 188416, 192512, 46 * 2112, 46 * 1152, 0, 0},
      {"glm-5.3-flash", 11264 + 704, 12288 + 768, 11 * 528 + 363, 11 * 288 + 363, 147619840, 0},
      {"deepseek-v2", 69120, 69120, 60 * 594, 60 * 324, 0, 0},
      {"deepseek-v2-lite", 31104, 31104, 27 * 594, 27 * 324, 0, 0},
      {"deepseek-v3", 70272, 71424, 61 * 594, 61 * 324, 0, 0},
      {"deepseek-v3.2", 85888, 87296, 61 * (594 + 132), 61 * (324 + 132), 0, 0},
      {"glm-5", 109824, 111232, 78 * (594 + 132), 78 * (324 + 132), 0, 0},
      {"kimi-k2", 70272, 70272, 61 * 594, 61 * 324, 0, 0},
      {"kimi-k2.5", 70272, 70272, 61 * 594, 61 * 324, 0, 0},
      {"kimi-linear", 8064, 8064, 7 * 594, 7 * 324, 43417600, 0},
      {"kimi-k3", 27648, 27648, 24 * 594, 24 * 324, 449372160, 0},
      // 320 a CSA layer, 8 an HCA layer.
      {"deepseek-v4-flash", 21 * 320 + 20 * 8, 21 * 320 + 20 * 8,
       21 * (528 + 132) / 4.0 + 20 * 528 / 128.0, 21 * (288 + 132) / 4.0 + 20 * 288 / 128.0, 0,
       43 * 128 * 1024},
      {"qwen3-30b-a3b", 98304, 98304, 48 * 1056, 48 * 576, 0, 0},
  };
  for (const CacheCase& c : cases) {
    const ModelProfile p = profile_of(c.model);
    EXPECT_EQ(format(p, "bf16"), c.bf16) << c.model;
    EXPECT_EQ(format(p, "bf16", true), c.with_mtp) << c.model;
    EXPECT_EQ(format(p, "fp8"), c.fp8) << c.model;
    EXPECT_EQ(format(p, "fp4"), c.fp4) << c.model;
    EXPECT_EQ(p.state_bytes.value(), c.state) << c.model;
    EXPECT_EQ(p.window_bytes.value(), c.window) << c.model;
  }
}

TEST(CacheBytes, formats_of_one_kernel_are_there_where_they_fit) {
  EXPECT_EQ(format(profile_of("deepseek-v3.2"), "flashmla-656"), 48068);
  EXPECT_EQ(format(profile_of("glm-5.3-flash"), "flashmla-528"), 11 * 528 + 363);
  EXPECT_EQ(format(profile_of("deepseek-v3"), "flashmla-528"), -1);    // rows of 576
  EXPECT_EQ(format(profile_of("glm-5.3-flash"), "flashmla-584"), -1);  // no rope values
  const ModelProfile v4 = profile_of("deepseek-v4-flash");
  EXPECT_EQ(v4.layouts.front().row_bytes, 1024);
  EXPECT_EQ(format(v4, "flashmla-584"), 21 * (584 + 132) / 4.0 + 20 * 584 / 128.0);
  EXPECT_EQ(format(v4, "flashmla-288"), format(v4, "fp4"));
}

TEST(CacheBytes, undetected_latents_cost_what_keys_and_values_of_heads_do) {
  EXPECT_EQ(profile_of("glm-4.7-flash").per_head_bytes.value(), 962560u);
  EXPECT_EQ(profile_of("glm-4.5").per_head_bytes.value(), 0u);
}

TEST(CacheBytes, indexers_that_layers_share_are_counted_once) {
  const ModelProfile p = profile_of("glm-5.2");  // every fourth layer from the third on, and 0, 1
  EXPECT_EQ(p.index_layers, 21);
  EXPECT_EQ(format(p, "bf16"), 78 * 1152 + 21 * 256);
  Json config = load_config("glm-5");
  config.set("index_topk_pattern", std::string("FSSFSS"));
  EXPECT_EQ(profile_of(config).index_layers, 2);
}

struct SizeCase {
  const char* model;
  double total, active, mtp;  // billions
};

TEST(Parameters, from_shapes_are_those_that_are_published) {
  const SizeCase cases[] = {
      {"glm-4.7-flash", 29.943, 3.58, 0.644},    // 31.22 with copies of embedding and head
      {"glm-4.5", 352.8, 32.9, 3.99},            // "355B-A32B"
      {"glm-4.5-air", 106.85, 12.8, 2.37},       // "106B-A12B"
      {"glm-5.3-flash", 313.33, 16.74, 7.43},    // 321 B with the draft layer and the tower
      {"deepseek-v2", 235.74, 20.85, 0},         // "236B, 21B"
      {"deepseek-v2-lite", 15.706, 2.45, 0},     // "15.7B, 2.4B"
      {"deepseek-v3", 671.026, 36.63, 11.61},    // "671B, 37B", 685 with the draft layer and copies
      {"glm-5", 743.9, 40.8, 9.95},              // "744B-A40B"
      {"glm-5.2", 743.4, 40.3, 9.95},            // 753 B in the checkpoint
      {"kimi-k2", 1026.4, 31.7, 0},              // "1T, 32B"
      {"kimi-linear", 49.12, 3.1, 0},            // "48B-A3B"
      {"kimi-k3", 2779.5, 104.2, 0},             // "2.8T, 104B"
      {"deepseek-v4-flash", 284.3, 13.27, 6.6},  // "284B, 13B"
      {"qwen3-30b-a3b", 30.532, 3.04, 0},        // "30.5B, 3.3B" with the embedding
  };
  for (const SizeCase& c : cases) {
    const ModelProfile p = profile_of(c.model);
    const auto billions = [](Count count) { return static_cast<double>(count.value()) / 1e9; };
    EXPECT_NEAR(billions(p.total_parameters), c.total, 0.001 * c.total) << c.model;
    EXPECT_NEAR(billions(p.active_parameters), c.active, 0.01 * c.active) << c.model;
    EXPECT_NEAR(billions(p.mtp_parameters), c.mtp, 0.01 * c.mtp) << c.model;
  }
}

TEST(Parameters, of_a_vision_tower_are_counted_where_its_shapes_are_known) {
  const ModelProfile p = profile_of("glm-5.3-flash");
  const double all = static_cast<double>(p.total_parameters.value() + p.mtp_parameters.value() +
                                         p.vision_parameters.value());
  EXPECT_NEAR(all / 1e9, 321, 0.5);  // "321B"
  EXPECT_EQ(profile_of("kimi-k3").vision_parameters.value(), 0u);
  Json config = load_config("glm-5.3-flash"), vision = *config.find("vision_config");
  vision.set("depth", -3);
  config.set("vision_config", vision);
  EXPECT_THAT(read_profile(config).error().message, HasSubstr("\"depth\" must be"));
}

TEST(CacheReads, are_bounded_by_what_an_indexer_chooses) {
  EXPECT_EQ(cache_read_bytes(profile_of("glm-4.7-flash"), 1000), 54144e3);
  EXPECT_EQ(cache_read_bytes(profile_of("glm-5"), 10000), 78 * (2048 * 1152.0 + 10000 * 256.0));
  EXPECT_EQ(cache_read_bytes(profile_of("glm-5"), 100), 109824e2);
  EXPECT_EQ(cache_read_bytes(profile_of("kimi-linear"), 10), 43417600 + 80640);
}

TEST(WeightBytes, follow_what_the_config_declares) {
  // The files that are published: 1,560,936,091,448 bytes with a tower of 0.4 GB, and 148.65 GiB.
  EXPECT_NEAR(static_cast<double>(profile_of("kimi-k3").weight_bytes.value()), 1.560936e12, 1e9);
  EXPECT_NEAR(static_cast<double>(profile_of("deepseek-v4-flash").weight_bytes.value()),
              148.65 * (1 << 30), 0.002 * 148.65 * (1 << 30));
  const ModelProfile flash = profile_of("glm-4.7-flash");
  EXPECT_EQ(flash.weight_bytes.value(),
            2 * (flash.total_parameters.value() + flash.mtp_parameters.value()));
  EXPECT_EQ(flash.quantisation.scheme, "");
  EXPECT_THAT(profile_of("deepseek-v3").quantisation.scheme, HasSubstr("FP8 in blocks"));
  EXPECT_THAT(profile_of("kimi-k2.5").quantisation.scheme, HasSubstr("INT4 in groups of 32"));
  EXPECT_THAT(profile_of("glm-4.7-nvfp4").quantisation.scheme, HasSubstr("NVFP4"));
}

TEST(WeightBytes, modelopt_may_say_it_in_a_file_of_its_own) {
  Json quant(Json::Object{}), inner(Json::Object{});
  inner.set("quant_algo", "NVFP4");
  inner.set("kv_cache_quant_algo", "FP8");
  quant.set("quantization", inner);
  const auto p = read_profile(load_config("glm-4.5"), quant);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->quantisation.method, "modelopt");
  EXPECT_EQ(p->quantisation.cache, "FP8");
  EXPECT_LT(p->weight_bytes.value(), profile_of("glm-4.5").weight_bytes.value() / 3);
}

struct ClassCase {
  const char *model, *family, *attention, *kind;
};

TEST(AttentionClass, is_told_with_the_rule_that_decided_it) {
  const ClassCase cases[] = {
      {"glm-4.7-flash", "glm4_moe_lite", "MLA", "mla"},
      {"glm-4.5", "glm4_moe", "GQA", "gqa"},
      {"glm-5", "glm_moe_dsa", "MLA-sparse (DSA)", "mla"},
      {"glm-5.3-flash", "glm5_next", "hybrid: KDA + MLA-sparse (k-pool)", "mla"},
      {"deepseek-v3.2", "deepseek_v32", "MLA-sparse (DSA)", "mla"},
      {"deepseek-v4-flash", "deepseek_v4", "shared-KV MQA: sliding window + compressed (CSA, HCA)",
       "shared-kv"},
      {"kimi-k2.5", "kimi_k25", "MLA", "mla"},
      {"kimi-k3", "kimi_k3", "hybrid: KDA + MLA", "mla"},
      {"kimi-linear", "kimi_linear", "hybrid: KDA + MLA", "mla"},
      {"qwen3-30b-a3b", "generic", "GQA", "gqa"},
  };
  for (const ClassCase& c : cases) {
    const ModelProfile p = profile_of(c.model);
    EXPECT_EQ(p.family, c.family) << c.model;
    EXPECT_EQ(p.attention_class, c.attention) << c.model;
    EXPECT_EQ(attention_kind_name(p.attention), c.kind) << c.model;
    EXPECT_FALSE(p.attention_why.empty()) << c.model;
    EXPECT_EQ(p.guessed, p.family == "generic") << c.model;
  }
}

TEST(AttentionClass, derived_widths_say_how_they_follow) {
  const ModelProfile p = profile_of("glm-4.7-flash");
  EXPECT_EQ(p.dim("qk_head_dim"), 256);
  EXPECT_EQ(p.dim("cache_row"), 576);
  const auto row = std::ranges::find(p.dims, std::string("cache_row"), &ProfileDim::name);
  EXPECT_EQ(row->derived, "kv_lora_rank + qk_rope_head_dim");
  EXPECT_EQ(p.dim("head_dim"), -1);
  EXPECT_THAT(p.notes, testing::Contains(HasSubstr("head_dim is absent by design")));
  EXPECT_THAT(profile_of("deepseek-v3").notes,
              testing::Contains(HasSubstr("no single head width: queries have 192, values 128")));
}

TEST(UnknownFamilies, are_guessed_from_their_keys_and_said_to_be) {
  Json config = load_config("deepseek-v3");
  config.set("model_type", "someone_elses");
  config.set("architectures", Json(Json::Array{Json("SomeoneElsesForCausalLM")}));
  ModelProfile p = profile_of(config);
  EXPECT_TRUE(p.guessed);
  EXPECT_EQ(p.family, "generic");
  EXPECT_EQ(format(p, "bf16"), 70272);
  EXPECT_THAT(p.attention_why, HasSubstr("looks like MLA"));
  EXPECT_THAT(p.notes, testing::Contains(HasSubstr("guess")));

  config = load_config("qwen3-30b-a3b");
  config.set("num_key_value_heads", 1);
  EXPECT_EQ(profile_of(config).attention, AttentionKind::kMqa);
  config.set("num_key_value_heads", Json());
  EXPECT_EQ(profile_of(config).attention, AttentionKind::kMha);
  config.set("sliding_window", 4096);
  EXPECT_THAT(profile_of(config).notes, testing::Contains(HasSubstr("at most this")));
}

TEST(UnknownFamilies, are_known_by_their_architecture_where_the_type_is_new) {
  Json config = load_config("deepseek-v3");
  config.set("model_type", "deepseek_v3_tuned");
  const ModelProfile p = profile_of(config);
  EXPECT_FALSE(p.guessed);
  EXPECT_EQ(p.family, "deepseek_v3");
}

TEST(Context, scaled_ropes_are_told) {
  const ModelProfile p = profile_of("deepseek-v3");
  EXPECT_EQ(p.context.positions, 163840);
  EXPECT_EQ(p.context.rope, "yarn");
  EXPECT_EQ(p.context.factor, 40);
  EXPECT_EQ(p.context.original, 4096);
  EXPECT_EQ(profile_of("glm-5.2").context.theta, 8e6);
  EXPECT_EQ(profile_of("kimi-k3").context.rope, "none");
}

TEST(HostileConfigs, are_refused_by_the_key) {
  const std::pair<const char*, Json> wrong[] = {
      {"num_hidden_layers", std::uint64_t{1} << 63},
      {"num_hidden_layers", -1},
      {"num_hidden_layers", "47"},
      {"hidden_size", 1e300},
      {"hidden_size", 2048.5},
      {"vocab_size", Json(Json::Array{})},
      {"kv_lora_rank", 0},
      {"qk_nope_head_dim", true},
      {"n_routed_experts", 1 << 30},
      {"num_experts_per_tok", 65},
      {"rope_scaling", 7},
      {"mlp_layer_types", "sparse"},
      {"tie_word_embeddings", "no"},
      {"scoring_func", 1},
  };
  for (const auto& [key, value] : wrong) {
    Json config = load_config("glm-4.7-flash");
    config.set(key, value);
    const auto profile = read_profile(config);
    ASSERT_FALSE(profile) << key << " " << value.dump();
    EXPECT_THAT(profile.error().message, HasSubstr(key)) << value.dump();
  }
  for (const char* key : {"num_hidden_layers", "hidden_size", "vocab_size", "kv_lora_rank"}) {
    Json config = load_config("glm-4.7-flash");
    config.set(key, Json());
    const auto profile = read_profile(config);
    ASSERT_FALSE(profile) << key;
    EXPECT_THAT(profile.error().message, HasSubstr("is missing"));
  }
  EXPECT_THAT(read_profile(Json(Json::Object{})).error().message, HasSubstr("model_type"));
}

TEST(HostileConfigs, sizes_that_multiply_beyond_63_bits_are_refused) {
  Json config = load_config("glm-4.7-flash");
  for (const char* key : {"hidden_size", "moe_intermediate_size", "vocab_size"})
    config.set(key, std::int64_t{1} << 24);
  config.set("n_routed_experts", 1 << 16);
  config.set("num_hidden_layers", 4096);
  const auto profile = read_profile(config);
  ASSERT_FALSE(profile);
  EXPECT_THAT(profile.error().message, HasSubstr("2^63"));
}

TEST(HostileConfigs, lists_of_layers_must_cover_them_once) {
  Json config = load_config("kimi-linear");
  Json block = *config.find("linear_attn_config");
  Json::Array layers = block.find("kda_layers")->as_array();
  layers.pop_back();
  block.set("kda_layers", layers);
  config.set("linear_attn_config", block);
  EXPECT_THAT(read_profile(config).error().message, HasSubstr("once, counted from 1"));
  config = load_config("deepseek-v4-flash");
  config.set("compress_ratios", Json(Json::Array{Json(4)}));
  EXPECT_THAT(read_profile(config).error().message, HasSubstr("compress_ratios"));
}

TEST(Count, stays_at_the_largest) {
  const Count big = std::uint64_t{1} << 62;
  EXPECT_TRUE((big * big).saturated());
  EXPECT_TRUE((big + big).saturated());
  EXPECT_TRUE((Count(1) + big * 4).saturated());
  EXPECT_TRUE(Count(-1).saturated());
  EXPECT_EQ((Count(3) * 5 + 1).value(), 16u);
}

}  // namespace
}  // namespace glint
