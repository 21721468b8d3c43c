// What the families read from a config, what they refuse and in which words.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "golden.h"

namespace glint {
namespace {

using testing::HasSubstr;

// The released GLM-4.7-Flash.
Json flash_config() {
  return *parse_json(R"({
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "dtype": "bfloat16",
    "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 10240, "kv_lora_rank": 512, "max_position_embeddings": 202752,
    "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 20, "num_experts_per_tok": 4,
    "num_hidden_layers": 47, "num_key_value_heads": 20, "q_lora_rank": 768, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "routed_scaling_factor": 1.8,
    "tie_word_embeddings": false, "topk_group": 1, "v_head_dim": 256, "vocab_size": 154880,
    "first_k_dense_replace": 1, "topk_method": "noaux_tc", "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 1.0, "rope_scaling": null, "rope_theta": 1000000})");
}

// The released GLM-4.5.
Json glm45_config() {
  return *parse_json(R"({
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "torch_dtype": "bfloat16",
    "attention_bias": true, "attention_dropout": 0.0, "pad_token_id": 151329,
    "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "partial_rotary_factor": 0.5, "initializer_range": 0.02,
    "intermediate_size": 12288, "max_position_embeddings": 131072, "moe_intermediate_size": 1536,
    "norm_topk_prob": true, "num_attention_heads": 96, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 160, "n_shared_experts": 1, "routed_scaling_factor": 2.5,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_hidden_layers": 92,
    "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 1000000, "tie_word_embeddings": false,
    "transformers_version": "4.54.0", "use_cache": true, "use_qk_norm": true,
    "vocab_size": 151552})");
}

// `config` with the keys of the object `changes` set.
Json changed(Json config, const char* changes) {
  const auto parsed = parse_json(changes);
  for (const auto& [key, value] : parsed->as_object()) config.set(key, value);
  return config;
}

// GLM-4.6 and GLM-4.7, which differ from GLM-4.5 in their context only.
Json glm46_config() {
  return changed(glm45_config(), R"({"max_position_embeddings": 202752})");
}

Json glm45_air_config() {
  return changed(glm45_config(), R"({
    "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "n_routed_experts": 128, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
    "num_hidden_layers": 46, "use_qk_norm": false})");
}

// The released GLM-5.3-Flash.
Json glm53_flash_config() {
  Json config = *parse_json(R"({
    "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next",
    "dtype": "bfloat16", "tie_word_embeddings": false, "image_token_id": 154854,
    "video_token_id": 154854, "image_start_token_id": 154830, "image_end_token_id": 154831,
    "video_start_token_id": 154832, "video_end_token_id": 154833,
    "text_config": {
      "model_type": "glm5_next_text", "vocab_size": 154880, "hidden_size": 4096,
      "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 45,
      "num_attention_heads": 64, "num_key_value_heads": 64, "n_shared_experts": 1,
      "n_routed_experts": 288, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
      "q_lora_rank": 1536, "qk_rope_head_dim": 0, "qk_head_dim": 256, "v_head_dim": 256,
      "qk_nope_head_dim": 256, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8,
      "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
      "moe_router_dtype": "float32", "hidden_act": "silu", "max_position_embeddings": 1048576,
      "rms_norm_eps": 1e-05, "first_k_dense_replace": 3, "mla_use_nope": true,
      "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "index_kpool": 4,
      "index_kpool_compress": true, "index_kpool_always_select_tail": true,
      "indexer_rope_interleave": true, "index_share_for_mtp_iteration": true, "head_dim": 0,
      "swiglu_limit": 10.0, "mhc": true, "hc_mult": 4, "hc_eps": 1e-06, "hc_sinkhorn_iters": 20,
      "num_nextn_predict_layers": 1, "attention_bias": false, "tie_word_embeddings": false,
      "eos_token_id": [154820, 154827, 154829],
      "linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0}},
    "vision_config": {"model_type": "glm5_next_vision", "depth": 24, "hidden_size": 1024,
      "intermediate_size": 4096, "num_heads": 16, "patch_size": 14, "temporal_patch_size": 2,
      "spatial_merge_size": 2, "in_channels": 3, "out_hidden_size": 4096,
      "projection_intermediate_size": 10240, "rms_norm_eps": 1e-05, "attention_bias": true,
      "hidden_act": "silu", "swiglu_limit": 10.0}})");
  Json text = *config.find("text_config"), linear = *text.find("linear_attn_config");
  Json layers(Json::Array{}), indexers = layers, kda = layers, full = layers;
  for (int i = 0; i < 45; ++i) {
    layers.push_back(i % 4 == 3 ? "deepseek_sparse_attention" : "linear_attention");
    indexers.push_back("full");
    (i % 4 == 3 ? full : kda).push_back(i);
  }
  linear.set("kda_layers", kda);
  linear.set("full_attn_layers", full);
  text.set("layer_types", layers);
  text.set("indexer_types", indexers);
  text.set("linear_attn_config", linear);
  config.set("text_config", text);
  return config;
}

Result<ModelInfo> describe(Json config) {
  return describe_model(*Checkpoint::of_config(std::move(config)));
}

std::string refusal(Json config) {
  const auto info = describe(std::move(config));
  return info.has_value() ? "" : info.error().message;
}

std::string refusal_with(const char* key, Json value) {
  Json config = flash_config();
  config.set(key, std::move(value));
  return refusal(std::move(config));
}

TEST(Glm4MoeLiteConfig, the_released_model_costs_what_its_publisher_says) {
  const auto info = describe(flash_config());
  ASSERT_TRUE(info.has_value()) << info.error().message;
  EXPECT_EQ(info->attention_class, "MLA");
  EXPECT_EQ(info->cache.bf16.bytes_per_token(), 54'144u);
  EXPECT_EQ(info->cache.fp8->bytes_per_token(), 47u * 594u);
  EXPECT_EQ(info->cache.fp4->bytes_per_token(), 47u * 324u);
  EXPECT_NEAR(static_cast<double>(info->total_parameters), 29.943e9, 0.001e9);
  EXPECT_NEAR(static_cast<double>(info->active_parameters), 3.6e9, 0.1e9);
  EXPECT_EQ(info->mtp_layers, 1);
  EXPECT_FALSE(info->mtp_present);
}

TEST(Glm4MoeLiteConfig, both_spellings_of_rope_are_read) {
  Json config = flash_config();
  config.set("rope_theta", Json());
  config.set("rope_parameters", *parse_json(R"({"rope_type": "default", "rope_theta": 1000000.0,
                             "partial_rotary_factor": 1.0})"));
  EXPECT_EQ(refusal(config), "");
  config.set("rope_parameters", Json());
  EXPECT_THAT(refusal(config), HasSubstr("rope_theta"));
}

TEST(Glm4MoeLiteConfig, what_is_not_implemented_is_refused_by_name) {
  const std::pair<const char*, const char*> cases[] = {
      {"attention_bias", "true"},
      {"hidden_act", "\"gelu\""},
      {"topk_method", "\"greedy\""},
      {"scoring_func", "\"softmax\""},
      {"rope_interleave", "false"},
      {"partial_rotary_factor", "0.5"},
      {"q_lora_rank", "null"},
      {"num_key_value_heads", "4"},
      {"rope_scaling", R"({"type": "yarn", "factor": 4})"},
      {"rope_parameters", R"({"rope_type": "yarn", "rope_theta": 1e6})"},
      {"rope_parameters", R"({"rope_type": "default", "rope_theta": 1e6, "mscale": 2})"},
      {"quantization_config", R"({"quant_method": "bitsandbytes"})"},
      {"sliding_window", "4096"},
      {"moe_layer_freq", "2"},
      {"index_topk", "2048"},
      {"a_key_from_the_future", "1"},
  };
  for (const auto& [key, value] : cases) {
    const auto info = [&] {
      Json config = flash_config();
      config.set(key, *parse_json(value));
      return describe(std::move(config));
    }();
    ASSERT_FALSE(info.has_value()) << key;
    EXPECT_EQ(info.error().code, ErrorCode::kUnsupported) << key;
    EXPECT_THAT(info.error().message, HasSubstr(fmt::format("\"{}\"", key)));
  }
}

TEST(Glm4MoeLiteConfig, contradictions_and_wrong_types_are_refused_by_name) {
  const std::pair<const char*, const char*> cases[] = {
      {"hidden_size", "0"},          {"hidden_size", "-1"},
      {"hidden_size", "\"2048\""},   {"hidden_size", "2048.5"},
      {"hidden_size", "1e30"},       {"vocab_size", "99999999999"},
      {"num_hidden_layers", "[47]"}, {"norm_topk_prob", "1"},
      {"num_experts_per_tok", "65"}, {"n_group", "7"},
      {"topk_group", "2"},           {"rms_norm_eps", "-1"},
      {"qk_rope_head_dim", "63"},    {"rope_theta", "\"1e6\""},
      {"rope_theta", "0"},           {"rope_scaling", "3"},
      {"mlp_layer_types", "[]"},     {"routed_scaling_factor", "0"},
      {"num_hidden_layers", "null"},
  };
  for (const auto& [key, value] : cases) {
    EXPECT_THAT(refusal_with(key, *parse_json(value)), HasSubstr(fmt::format("\"{}\"", key)))
        << value;
  }
  Json groups = flash_config();
  groups.set("n_group", 32);
  groups.set("topk_group", 1);
  EXPECT_THAT(refusal(groups), HasSubstr("num_experts_per_tok"));
}

TEST(Glm4MoeLiteConfig, a_list_of_layer_types_wins_over_the_count_of_dense_layers) {
  Json config = flash_config();
  Json types;
  for (int i = 0; i < 47; ++i) types.push_back(i < 3 ? "dense" : "sparse");
  config.set("mlp_layer_types", types);
  const auto listed = describe(config), counted = describe(flash_config());
  ASSERT_TRUE(listed.has_value()) << listed.error().message;
  EXPECT_LT(listed->total_parameters, counted->total_parameters);
  types.as_array()[5] = "mixed";
  config.set("mlp_layer_types", types);
  EXPECT_THAT(refusal(config), HasSubstr("mlp_layer_types"));
}

TEST(Glm4MoeConfig, the_released_models_cost_what_their_publisher_says) {
  struct Released {
    Json config;
    double total, active, with_mtp;  // the last as the checkpoint's headers count
    std::uint64_t cache_bytes;
    int context;
  };
  const Released models[] = {
      {glm45_config(), 352.80e9, 32.80e9, 358.3e9, 376'832, 131'072},
      {glm46_config(), 352.80e9, 32.80e9, 358.3e9, 376'832, 202'752},
      {glm45_air_config(), 106.85e9, 12.85e9, 110.5e9, 188'416, 131'072},
  };
  for (const Released& model : models) {
    const auto info = describe(model.config);
    ASSERT_TRUE(info.has_value()) << info.error().message;
    EXPECT_EQ(info->attention_class, "GQA");
    EXPECT_THAT(info->attention_why, HasSubstr("num_key_value_heads 8"));
    EXPECT_EQ(info->cache.bf16.bytes_per_token(), model.cache_bytes);
    // A scale of a byte for 32 values of a byte, or for 16 of half a byte.
    EXPECT_EQ(info->cache.fp8->bytes_per_token(), model.cache_bytes / 256 * (128 + 4));
    EXPECT_EQ(info->cache.fp4->bytes_per_token(), model.cache_bytes / 256 * (64 + 8));
    EXPECT_EQ(info->max_position_embeddings, model.context);
    EXPECT_EQ(info->num_kv_heads, 8);
    const auto total = static_cast<double>(info->total_parameters);
    EXPECT_NEAR(total, model.total, 0.02e9);
    EXPECT_NEAR(static_cast<double>(info->active_parameters), model.active, 0.4e9);
    // One more layer without its dense alternative, the two halves that meet before it, and its
    // copies of embedding and head.
    const auto d = static_cast<double>(info->hidden_size);
    Json more = model.config;
    more.set("num_hidden_layers", info->num_layers + 1);
    const double layer = static_cast<double>(describe(more)->total_parameters) - total;
    EXPECT_NEAR(total + layer + 2 * d * d + 2 * d * info->vocab_size, model.with_mtp, 0.1e9);
    EXPECT_EQ(info->mtp_layers, 1);
    EXPECT_FALSE(info->mtp_present);
  }
}

TEST(Glm4MoeConfig, widths_that_no_key_states_are_marked_derived) {
  const auto info = describe(glm45_config());
  ASSERT_TRUE(info.has_value()) << info.error().message;
  std::string dims;
  for (const ModelInfo::HeadDim& dim : info->head_dims)
    dims += fmt::format("{} {}{}, ", dim.name, dim.value, dim.derived ? " derived" : "");
  EXPECT_EQ(dims,
            "head_dim 128, rotary_dim 64 derived, heads_per_kv_head 12 derived, cache_width 2048 "
            "derived, ");
}

TEST(Glm4MoeConfig, optional_keys_mean_what_the_format_says) {
  Json config = glm45_config();
  for (const char* key : {"use_qk_norm", "attention_bias", "partial_rotary_factor"})
    config.set(key, Json());
  const auto bare = describe(config);
  ASSERT_TRUE(bare.has_value()) << bare.error().message;
  EXPECT_EQ(bare->head_dims[1].value, 64);
  const std::uint64_t biases = 92u * (12288 + 2 * 1024), norms = 92u * 2 * 128;
  EXPECT_EQ(describe(glm45_config())->total_parameters - bare->total_parameters, biases + norms);
}

TEST(Glm4MoeConfig, both_spellings_of_a_partial_rope_are_read) {
  Json config = glm45_config();
  config.set("rope_theta", Json());
  config.set("partial_rotary_factor", Json());
  config.set("rope_parameters", *parse_json(R"({"rope_type": "default", "rope_theta": 1000000.0,
                             "partial_rotary_factor": 0.25})"));
  const auto info = describe(config);
  ASSERT_TRUE(info.has_value()) << info.error().message;
  EXPECT_EQ(info->head_dims[1].value, 32);
}

TEST(Glm4MoeConfig, what_is_not_implemented_or_contradicts_itself_is_refused_by_name) {
  const std::pair<const char*, const char*> cases[] = {
      {"hidden_act", "\"gelu\""},
      {"topk_method", "\"greedy\""},
      {"scoring_func", "\"softmax\""},
      {"rope_scaling", R"({"type": "yarn", "factor": 4})"},
      {"rope_parameters", R"({"rope_type": "yarn", "rope_theta": 1e6})"},
      {"rope_parameters", R"({"rope_theta": 1e6, "partial_rotary_factor": 2})"},
      {"quantization_config", R"({"quant_method": "bitsandbytes"})"},
      {"sliding_window", "4096"},
      {"rope_interleave", "true"},
      {"kv_lora_rank", "512"},
      {"mlp_layer_types", "[]"},
      {"a_key_from_the_future", "1"},
      {"head_dim", "null"},
      {"head_dim", "0"},
      {"head_dim", "100000"},
      {"num_key_value_heads", "7"},
      {"num_key_value_heads", "97"},
      {"num_attention_heads", "0"},
      {"partial_rotary_factor", "0"},
      {"partial_rotary_factor", "0.01"},
      {"partial_rotary_factor", "1.5"},
      {"use_qk_norm", "1"},
      {"attention_bias", "\"yes\""},
      {"first_k_dense_replace", "93"},
  };
  for (const auto& [key, value] : cases) {
    Json config = glm45_config();
    config.set(key, *parse_json(value));
    EXPECT_THAT(refusal(config), HasSubstr(fmt::format("\"{}\"", key))) << value;
  }
}

TEST(Glm5NextConfig, the_released_model_costs_what_its_publisher_says) {
  const auto info = describe(glm53_flash_config());
  ASSERT_TRUE(info.has_value()) << info.error().message;
  EXPECT_EQ(info->attention_class, "hybrid: KDA + MLA-sparse (k-pool)");
  EXPECT_EQ(info->cache.bf16.num_layers, 11);
  EXPECT_EQ(info->cache.bf16.bytes_per_token(), 11'264u + 704u);
  EXPECT_EQ(info->cache.fp8->bytes_per_token(), 11u * 528u + 704u);
  EXPECT_EQ(info->cache.fp4->bytes_per_token(), 11u * 288u + 704u);
  EXPECT_EQ(info->cache.bf16.snapshot_bytes, 147'619'840u);
  // Beside the state itself: rows of tokens that are not folded into it yet.
  EXPECT_GT(info->cache.bf16.state_bytes, info->cache.bf16.snapshot_bytes);
  EXPECT_LT(info->cache.bf16.state_bytes, 300'000'000u);
  EXPECT_EQ(info->max_position_embeddings, 1'048'576);
  // 321.3 billion with the draft layer: an expert layer of latent attention without streams, and
  // the two halves that meet before it.
  const auto total = static_cast<double>(info->total_parameters);
  const double draft = 289 * 3 * 4096.0 * 2048 + 288 * 4097.0 + 117.4e6 + 7.5e6 + 2 * 4096.0 * 4096;
  EXPECT_NEAR(total + draft, 320.8e9, 0.6e9);
  EXPECT_NEAR(static_cast<double>(info->active_parameters), 17.5e9, 1.5e9);
  EXPECT_EQ(info->mtp_layers, 1);
}

// The text_config with `key`, "outer/inner" where it is one level down, set to a value.
std::string glm5_refusal(const std::string& key, const char* value) {
  Json config = glm53_flash_config();
  Json text = *config.find("text_config");
  if (const auto slash = key.find('/'); slash != std::string::npos) {
    Json block = *text.find(key.substr(0, slash));
    block.set(key.substr(slash + 1), *parse_json(value));
    text.set(key.substr(0, slash), block);
  } else {
    text.set(key, *parse_json(value));
  }
  config.set("text_config", text);
  return refusal(config);
}

TEST(Glm5NextConfig, what_is_not_implemented_or_contradicts_itself_is_refused_by_name) {
  const std::pair<const char*, const char*> cases[] = {
      {"index_kpool_always_select_tail", "false"},
      {"index_kpool_compress", "false"},
      {"qk_rope_head_dim", "64"},
      {"qk_head_dim", "320"},
      {"mla_use_nope", "false"},
      {"mhc", "false"},
      {"hc_mult", "0"},
      {"hc_mult", "1000"},
      {"hc_sinkhorn_iters", "0"},
      {"hc_eps", "null"},
      {"moe_router_dtype", "\"bfloat16\""},
      {"scoring_func", "\"softmax\""},
      {"attention_bias", "true"},
      {"hidden_act", "\"gelu\""},
      {"index_kpool", "3"},
      {"index_kpool", "128"},
      {"index_kpool", "null"},
      {"index_topk", "2046"},
      {"index_topk", "0"},
      {"index_head_dim", "1e9"},
      {"layer_types", "null"},
      {"layer_types", "[\"linear_attention\"]"},
      {"indexer_types", "[]"},
      {"swiglu_limit", "-1"},
      {"linear_attn_config", "3"},
      {"linear_attn_config/short_conv_kernel_size", "3"},
      {"linear_attn_config/kda_layers", "[0, 1]"},
      {"linear_attn_config/full_attn_layers", "[4, 8]"},
      {"linear_attn_config/full_attn_layers", "[99]"},
      {"linear_attn_config/num_heads", "0"},
      {"linear_attn_config/gate_lower_bound", "1"},
      {"linear_attn_config/a_key_from_the_future", "1"},
      {"a_key_from_the_future", "1"},
  };
  for (const auto& [key, value] : cases) {
    const std::string inner = std::string(key).substr(std::string(key).find('/') + 1);
    EXPECT_THAT(glm5_refusal(key, value), HasSubstr(fmt::format("\"{}\"", inner)))
        << key << " " << value;
  }
  Json config = glm53_flash_config();
  config.set("text_config", Json());
  EXPECT_THAT(refusal(config), HasSubstr("text_config"));
  config = glm53_flash_config();
  config.set("tie_word_embeddings", true);
  EXPECT_THAT(refusal(config), HasSubstr("tie_word_embeddings"));
  config = glm53_flash_config();
  config.set("a_key_from_the_future", 1);
  EXPECT_THAT(refusal(config), HasSubstr("a_key_from_the_future"));
}

TEST(Glm5NextConfig, kinds_of_layers_are_checked_one_by_one) {
  const auto with = [](const char* key, int layer, const char* word) {
    Json config = glm53_flash_config();
    Json text = *config.find("text_config"), list = *text.find(key);
    list.as_array()[static_cast<std::size_t>(layer)] = word;
    text.set(key, list);
    config.set("text_config", text);
    return refusal(config);
  };
  EXPECT_EQ(with("layer_types", 3, "indexed_attention"), "");
  EXPECT_EQ(with("layer_types", 3, "full_attention"), "");
  EXPECT_EQ(with("indexer_types", 7, "shared"), "");
  EXPECT_EQ(with("indexer_types", 0, "shared"), "");  // of a layer without an indexer
  EXPECT_THAT(with("layer_types", 3, "sliding_attention"), HasSubstr("sliding_attention"));
  EXPECT_THAT(with("layer_types", 3, "linear_attention"), HasSubstr("kda_layers"));
  EXPECT_THAT(with("indexer_types", 3, "shared"), HasSubstr("no layer before it"));
  EXPECT_THAT(with("indexer_types", 7, "half"), HasSubstr("half"));
}

TEST(Glm5NextConfig, without_a_choice_of_keys_attention_is_dense) {
  Json config = glm53_flash_config(), text = *config.find("text_config");
  text.set("index_topk", Json());
  config.set("text_config", text);
  const auto info = describe(config);
  ASSERT_TRUE(info.has_value()) << info.error().message;
  EXPECT_EQ(info->attention_class, "hybrid: KDA + MLA");
  EXPECT_EQ(info->cache.bf16.bytes_per_token(), 11'264u);
}

TEST(Registry, unknown_families_are_refused_with_the_known_ones) {
  EXPECT_THAT(refusal_with("model_type", "foo"),
              testing::AllOf(HasSubstr("foo"), HasSubstr("glm4_moe_lite")));
  EXPECT_THAT(refusal_with("model_type", Json()), HasSubstr("model_type"));
}

// A golden checkpoint under a config that is edited.
std::string tensor_refusal(const char* key, const char* value) {
  const golden::Case golden("glm4_moe_lite");
  auto config = (*Checkpoint::open(golden.folder()))->config();
  config.set(key, *parse_json(value));
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("glint-config-{}", key);
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(golden.folder() / "model.safetensors", folder / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(write_file_atomically(folder / "config.json", config.dump()).has_value());
  const auto checkpoint = Checkpoint::open(folder);
  EXPECT_TRUE(checkpoint.has_value());
  const auto checked = check_model(**checkpoint);
  std::filesystem::remove_all(folder);
  return checked.has_value() ? "" : checked.error().message;
}

TEST(Tensors, a_shape_that_the_config_contradicts_is_named_with_both) {
  EXPECT_THAT(
      tensor_refusal("moe_intermediate_size", "48"),
      testing::AllOf(HasSubstr("model.layers.1.mlp.experts.0.gate_proj.weight"),
                     HasSubstr("[32, 96]"), HasSubstr("[48, 96]"), HasSubstr("model.safetensors")));
}

TEST(Tensors, a_missing_one_is_named) {
  EXPECT_THAT(tensor_refusal("n_routed_experts", "13"),
              HasSubstr("model.layers.1.mlp.experts.12.gate_proj.weight is missing"));
}

TEST(Tensors, one_that_nothing_reads_is_named) {
  EXPECT_THAT(tensor_refusal("num_nextn_predict_layers", "0"),
              testing::AllOf(HasSubstr("model.layers.4."), HasSubstr("not part")));
}

TEST(Tensors, a_config_that_promises_millions_is_refused_quickly) {
  Json config = flash_config();
  config.set("num_hidden_layers", 1024);
  config.set("n_routed_experts", 4096);
  const auto checked = check_model(*Checkpoint::of_config(config));
  ASSERT_FALSE(checked.has_value());
  EXPECT_LT(checked.error().message.size(), 10'000u);
}

TEST(Tensors, weights_are_named_by_their_types_and_counted_as_a_token_reads_them) {
  const auto open = [](const std::filesystem::path& path) {
    return *describe_model(**Checkpoint::open(path));
  };
  const golden::Case golden("glm4_moe");
  const ModelInfo bf16 = open(golden.folder());
  EXPECT_EQ(bf16.weight_format, "bf16");
  // Two bytes a parameter, and the bias of the router, which is float32, another two.
  EXPECT_EQ(bf16.weight_bytes, 2 * bf16.total_parameters + 2 * 2 * 12);
  EXPECT_EQ(bf16.active_weight_bytes, 2 * bf16.active_parameters + 2 * 2 * 12);
  const auto file = std::filesystem::path(GLINT_TEST_DATA) / "gguf" / "demo-q4_0.gguf";
  EXPECT_EQ(open(file).weight_format, "q4_0+q6_k+f16+f32");
}

TEST(Tensors, mapped_and_resident_weights_give_the_same_bits) {
  const golden::Case golden("glm4_moe_lite");
  std::vector<std::vector<float>> results;
  for (const WeightPlacement placement : {WeightPlacement::kResident, WeightPlacement::kMapped}) {
    golden::Runner::Options options;
    options.isa = available_isas().back();
    options.compute = Compute::kBf16;
    options.placement = placement;
    golden::Runner runner(golden.folder(), options);
    results.push_back(runner.logits(golden.prompt(2), 0));
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace glint
