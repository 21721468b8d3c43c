// Files of the demo model, written and quantised by llama.cpp's tools, against its Hugging Face
// folder; and what is refused.
#include "checkpoint/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "../base/temp_folder.h"
#include "checkpoint/json_file.h"
#include "gguf_bytes.h"
#include "gguf_tiny_models.h"
#include "tensor/ggml_blocks.h"

namespace glint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

fs::path data(const std::string& name) {
  return fs::path(GLINT_TEST_DATA) / "gguf" / name;
}

class GgufModelTest : public ::testing::Test {
 protected:
  Result<GgufModel> translate_file(const fs::path& path) {
    auto file = GgufFile::open(path);
    if (!file) return file.error();
    files_.push_back(*file);
    return translate_gguf(**file);
  }
  Result<GgufModel> translate(const std::string& bytes) {
    return translate_file(folder_.write("m" + std::to_string(files_.size()) + ".gguf", bytes));
  }
  Result<GgufModel> translate(const GgufWriter& writer) { return translate(writer.file()); }
  std::string refusal(const GgufWriter& writer, ErrorCode code = ErrorCode::kUnsupported) {
    const auto model = translate(writer);
    if (model) return "accepted";
    EXPECT_EQ(model.error().code, code) << model.error().message;
    EXPECT_THAT(model.error().message, HasSubstr(".gguf"));
    return model.error().message;
  }
  TempFolder folder_;
  std::vector<std::shared_ptr<const GgufFile>> files_;  // what tensors' names were read from
};

const Json& value_of(const Json& config, std::string_view key) {
  static const Json kNone;
  const Json* found = config.find(key);
  EXPECT_NE(found, nullptr) << key;
  return found == nullptr ? kNone : *found;
}

bool same(const Json& a, const Json& b) {
  return a == b || (a.is_number() && b.is_number() && a.as_double() == b.as_double());
}

// Every key of `config` says what the demo's config.json says, and those that it lacks are known.
void expect_like_demo(const Json& config, const std::set<std::string>& differing) {
  const auto demo = read_json_object(fs::path(GLINT_SOURCE_DIR) / "models/demo/config.json");
  ASSERT_TRUE(demo);
  for (const auto& [key, value] : config.as_object()) {
    if (differing.contains(key)) continue;
    const Json* expected = demo->find(key);
    ASSERT_NE(expected, nullptr) << key;
    EXPECT_TRUE(same(value, *expected)) << key << ": " << value.dump() << expected->dump();
  }
  const std::set<std::string> defaults = {"dtype", "attention_dropout", "partial_rotary_factor",
                                          "rope_scaling", "transformers_version"};
  for (const auto& [key, value] : demo->as_object()) {
    EXPECT_TRUE(defaults.contains(key) || config.find(key) != nullptr) << key;
  }
}

TEST_F(GgufModelTest, the_config_of_the_demo_is_its_config_json) {
  const auto model = translate_file(data("demo-q4_0.gguf"));
  ASSERT_TRUE(model) << model.error().message;
  expect_like_demo(model->config, {});
  EXPECT_EQ(model->generation_config.dump(),
            R"({"eos_token_id":[1515,1522,1524],"pad_token_id":1515})");
  EXPECT_THAT(model->notes, IsEmpty());
}

TEST_F(GgufModelTest, the_variants_have_the_same_config_and_say_what_is_assumed) {
  const std::pair<const char*, std::vector<std::string>> variants[] = {
      {"variant-fused_kv_b.gguf", {}},
      {"variant-both_kv_b.gguf",
       {"attn_kv_b of 2 layers is ignored: attn_k_b and attn_v_b say the same"}},
      {"variant-no_gating_func.gguf",
       {"the file has no expert_gating_func: sigmoid is assumed, as this family has it"}},
      {"variant-no_weights_scale.gguf",
       {"the file has no expert_weights_scale: 1.8 is assumed, as this family has it"}}};
  for (const auto& [name, notes] : variants) {
    const auto model = translate_file(data(name));
    ASSERT_TRUE(model) << model.error().message;
    expect_like_demo(model->config, {"num_hidden_layers", "num_nextn_predict_layers"});
    EXPECT_EQ(value_of(model->config, "num_hidden_layers").as_int(), 2) << name;
    EXPECT_EQ(value_of(model->config, "num_nextn_predict_layers").as_int(), 0) << name;
    EXPECT_EQ(model->notes, notes) << name;
  }
}

// ---- tensors

std::vector<float> values(const TensorRef& tensor) {
  std::size_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= static_cast<std::size_t>(size);
  std::vector<float> out(count);
  if (is_block_type(tensor.dtype)) {
    decode_blocks(tensor.dtype, tensor.bytes.data(), count / block_size(tensor.dtype).elements,
                  out.data());
    return out;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* at = tensor.bytes.data() + i * dtype_bytes(tensor.dtype);
    std::uint16_t half;
    std::memcpy(&half, at, sizeof half);
    switch (tensor.dtype) {
      case DType::kF32:
        std::memcpy(&out[i], at, sizeof(float));
        break;
      case DType::kF16:
        out[i] = f16_to_float(half);
        break;
      default:
        out[i] = bf16{half}.to_float();
    }
  }
  return out;
}

// Every block of 32 is within a Q4_0 step of the truth: an eighth of its largest value.
void expect_near_in_blocks(const std::vector<float>& got, const std::vector<float>& expected,
                           const std::string& name) {
  ASSERT_EQ(got.size(), expected.size()) << name;
  for (std::size_t block = 0; block + 32 <= got.size(); block += 32) {
    float largest = 0, error = 0;
    for (std::size_t i = block; i < block + 32; ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      error = std::max(error, std::abs(got[i] - expected[i]));
    }
    ASSERT_LE(error, largest * 0.13f) << name << " block " << block / 32;
  }
}

// The fused kv_b_proj of the demo as the split tensors hold it: keys transposed per head.
constexpr std::size_t kHeads = 4, kNope = 48, kValue = 64, kLatent = 64;
std::vector<float> keys_of(const std::vector<float>& fused) {
  std::vector<float> out;
  for (std::size_t h = 0; h < kHeads; ++h)
    for (std::size_t c = 0; c < kLatent; ++c)
      for (std::size_t n = 0; n < kNope; ++n)
        out.push_back(fused[(h * (kNope + kValue) + n) * kLatent + c]);
  return out;
}
std::vector<float> values_of(const std::vector<float>& fused) {
  std::vector<float> out;
  for (std::size_t h = 0; h < kHeads; ++h)
    for (std::size_t row = kNope; row < kNope + kValue; ++row)
      for (std::size_t c = 0; c < kLatent; ++c)
        out.push_back(fused[(h * (kNope + kValue) + row) * kLatent + c]);
  return out;
}

void expect_tensor_of_demo(const TensorRef& tensor, const Checkpoint& demo) {
  std::string name = tensor.name;
  const bool keys = name.ends_with("k_b_proj.weight");
  const bool split = keys || name.ends_with("self_attn.v_b_proj.weight");
  if (split) name.replace(name.size() - 15, 15, "kv_b_proj.weight");
  const TensorRef* original = demo.find(name);
  ASSERT_NE(original, nullptr) << tensor.name;
  std::vector<float> expected = values(*original);
  if (split) {
    expected = keys ? keys_of(expected) : values_of(expected);
    EXPECT_THAT(tensor.shape, keys ? ElementsAre(4, 64, 48) : ElementsAre(4, 64, 64));
  } else {
    EXPECT_EQ(tensor.shape, original->shape) << name;
  }
  if (tensor.dtype == DType::kF32) {
    EXPECT_EQ(values(tensor), expected) << name;
  } else {
    expect_near_in_blocks(values(tensor), expected, name);
  }
}

TEST_F(GgufModelTest, every_tensor_of_the_demo_is_there_with_its_name_shape_and_values) {
  const auto demo = Checkpoint::open(fs::path(GLINT_SOURCE_DIR) / "models/demo");
  const auto model = translate_file(data("demo-q4_0.gguf"));
  ASSERT_TRUE(demo && model);
  std::set<std::string> names;
  for (const TensorRef& tensor : model->tensors) {
    expect_tensor_of_demo(tensor, **demo);
    names.insert(tensor.name);
  }
  for (const auto& [name, tensor] : (*demo)->tensors()) {
    const auto kv = name.find("kv_b_proj.weight");
    if (kv == std::string::npos) {
      EXPECT_TRUE(names.contains(name)) << name;
    } else {
      EXPECT_TRUE(names.contains(name.substr(0, kv) + "k_b_proj.weight")) << name;
      EXPECT_TRUE(names.contains(name.substr(0, kv) + "v_b_proj.weight")) << name;
    }
  }
}

TEST_F(GgufModelTest, one_layout_of_kv_b_per_layer_reaches_the_model) {
  const auto demo = Checkpoint::open(fs::path(GLINT_SOURCE_DIR) / "models/demo");
  ASSERT_TRUE(demo);
  for (const char* name : {"variant-fused_kv_b.gguf", "variant-both_kv_b.gguf"}) {
    const auto model = translate_file(data(name));
    ASSERT_TRUE(model) << model.error().message;
    int fused = 0, split = 0;
    for (const TensorRef& tensor : model->tensors) {
      if (!tensor.name.ends_with("_b_proj.weight")) continue;
      expect_tensor_of_demo(tensor, **demo);
      fused += tensor.name.ends_with("kv_b_proj.weight") ? 1 : 0;
      split += tensor.name.ends_with(".k_b_proj.weight") ? 1 : 0;
      split += tensor.name.ends_with(".v_b_proj.weight") ? 1 : 0;
    }
    EXPECT_EQ(std::pair(fused, split), std::string_view(name).find("fused") != std::string::npos
                                           ? std::pair(2, 0)
                                           : std::pair(0, 4));
  }
}

const TensorRef* find(const GgufModel& model, std::string_view name) {
  const auto found = std::find_if(model.tensors.begin(), model.tensors.end(),
                                  [&](const TensorRef& tensor) { return tensor.name == name; });
  return found == model.tensors.end() ? nullptr : &*found;
}

TEST_F(GgufModelTest, half_of_a_split_beside_the_fused_layout_is_left_out) {
  GgufWriter writer = tiny_deepseek2({"blk.0.attn_v_b.weight"});
  writer.tensor("blk.0.attn_kv_b.weight", {4, 20});
  const auto model = translate(writer);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_NE(find(*model, "model.layers.0.self_attn.kv_b_proj.weight"), nullptr);
  EXPECT_EQ(find(*model, "model.layers.0.self_attn.k_b_proj.weight"), nullptr);
  EXPECT_NE(find(*model, "model.layers.1.self_attn.k_b_proj.weight"), nullptr);
  EXPECT_THAT(model->notes, IsEmpty());
}

TEST_F(GgufModelTest, split_tensors_may_be_plain_matrices_and_nothing_else) {
  GgufWriter writer = tiny_deepseek2({"blk.1.attn_k_b.weight", "blk.1.attn_v_b.weight"});
  GgufWriter transposed = writer;
  writer.tensor("blk.1.attn_k_b.weight", {3, 8}).tensor("blk.1.attn_v_b.weight", {4, 14});
  const auto model = translate(writer);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_THAT(find(*model, "model.layers.1.self_attn.k_b_proj.weight")->shape,
              ElementsAre(2, 4, 3));
  EXPECT_THAT(find(*model, "model.layers.1.self_attn.v_b_proj.weight")->shape,
              ElementsAre(2, 7, 4));
  transposed.tensor("blk.1.attn_k_b.weight", {4, 3, 2}).tensor("blk.1.attn_v_b.weight", {4, 7, 2});
  EXPECT_THAT(refusal(transposed, ErrorCode::kCorrupt),
              AllOf(HasSubstr("k_b_proj.weight"), HasSubstr("does not have the shape")));
}

TEST_F(GgufModelTest, experts_are_parts_of_their_stack_in_order) {
  const auto model = translate(tiny_deepseek2());
  ASSERT_TRUE(model) << model.error().message;
  const TensorRef* first = find(*model, "model.layers.1.mlp.experts.0.down_proj.weight");
  const TensorRef* second = find(*model, "model.layers.1.mlp.experts.1.down_proj.weight");
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_THAT(first->shape, ElementsAre(8, 6));
  EXPECT_EQ(first->bytes.size(), 8u * 6 * sizeof(float));
  EXPECT_EQ(second->bytes.data(), first->bytes.data() + first->bytes.size());
  EXPECT_EQ(find(*model, "model.layers.1.mlp.experts.2.down_proj.weight"), nullptr);
}

TEST_F(GgufModelTest, gate_and_up_may_be_fused_per_expert) {
  GgufWriter writer = tiny_deepseek2({"blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"});
  writer.tensor("blk.1.ffn_gate_up_exps.weight", {8, 12, 2});
  const auto model = translate(writer);
  ASSERT_TRUE(model) << model.error().message;
  const TensorRef* gate = find(*model, "model.layers.1.mlp.experts.1.gate_proj.weight");
  const TensorRef* up = find(*model, "model.layers.1.mlp.experts.1.up_proj.weight");
  ASSERT_TRUE(gate != nullptr && up != nullptr);
  EXPECT_THAT(gate->shape, ElementsAre(6, 8));
  EXPECT_THAT(up->shape, ElementsAre(6, 8));
  const TensorRef* gate0 = find(*model, "model.layers.1.mlp.experts.0.gate_proj.weight");
  EXPECT_EQ(gate->bytes.data(), gate0->bytes.data() + 2 * gate0->bytes.size());
  EXPECT_EQ(up->bytes.data(), gate->bytes.data() + gate->bytes.size());
}

TEST_F(GgufModelTest, stacks_that_do_not_fit_expert_count_are_refused) {
  for (const std::vector<std::uint64_t>& dims :
       {std::vector<std::uint64_t>{6, 8, 3}, {6, 8}, {6, 8, 1, 2}}) {
    GgufWriter writer = tiny_deepseek2({"blk.1.ffn_down_exps.weight"});
    writer.tensor("blk.1.ffn_down_exps.weight", dims);
    EXPECT_THAT(refusal(writer, ErrorCode::kCorrupt),
                AllOf(HasSubstr("\"blk.1.ffn_down_exps.weight\" does not stack 2 experts")));
  }
}

// ---- keys

TEST_F(GgufModelTest, a_head_is_as_wide_as_the_file_says_in_either_way) {
  const auto latent = translate(tiny_deepseek2());
  ASSERT_TRUE(latent) << latent.error().message;
  EXPECT_EQ(value_of(latent->config, "qk_nope_head_dim").as_int(), 3);
  EXPECT_EQ(value_of(latent->config, "v_head_dim").as_int(), 7);
  EXPECT_EQ(value_of(latent->config, "num_key_value_heads").as_int(), 2);
  GgufWriter legacy =
      tiny_deepseek2({"attention.key_length_mla", "attention.value_length_mla",
                      "attention.head_count_kv", "attention.key_length", "attention.value_length"});
  legacy.u32("deepseek2.attention.key_length", 5).u32("deepseek2.attention.value_length", 7);
  legacy.u32("deepseek2.attention.head_count_kv", 2);
  const auto expanded = translate(legacy);
  ASSERT_TRUE(expanded) << expanded.error().message;
  EXPECT_EQ(expanded->config, latent->config);
}

TEST_F(GgufModelTest, missing_keys_are_named) {
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length",
        "leading_dense_block_count", "attention.head_count", "attention.kv_lora_rank",
        "attention.key_length_mla", "attention.value_length_mla",
        "attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base",
        "expert_count", "expert_used_count", "expert_shared_count", "expert_feed_forward_length"}) {
    EXPECT_THAT(refusal(tiny_deepseek2({key}), ErrorCode::kCorrupt),
                HasSubstr("\"deepseek2." + std::string(key) + "\" is missing"));
  }
  EXPECT_THAT(refusal(tiny_deepseek2({"attention.q_lora_rank"})),
              HasSubstr("\"deepseek2.attention.q_lora_rank\" is missing"));
}

TEST_F(GgufModelTest, a_missing_router_key_means_what_the_family_does) {
  const Names keys = {"expert_gating_func", "expert_weights_scale", "expert_weights_norm"};
  const auto model = translate(tiny_deepseek2(keys));
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(value_of(model->config, "routed_scaling_factor").as_double(), 1.8);
  EXPECT_TRUE(value_of(model->config, "norm_topk_prob").as_bool());
  EXPECT_THAT(model->notes, ElementsAre(HasSubstr("no expert_gating_func: sigmoid"),
                                        HasSubstr("no expert_weights_scale: 1.8"),
                                        HasSubstr("no expert_weights_norm: true")));
  GgufWriter unsaid = tiny_deepseek2(keys);
  EXPECT_EQ(refusal(unsaid.u32("deepseek2.expert_gating_func", 0)), "accepted");
}

TEST_F(GgufModelTest, routers_that_are_no_sigmoid_are_refused) {
  for (const std::uint32_t gating : {1u, 3u}) {
    GgufWriter writer = tiny_deepseek2({"expert_gating_func"});
    EXPECT_THAT(refusal(writer.u32("deepseek2.expert_gating_func", gating)),
                HasSubstr("\"deepseek2.expert_gating_func\" is " + std::to_string(gating)));
  }
  EXPECT_THAT(refusal(tiny_deepseek2({"expert_gating_func", "blk.1.exp_probs_b.bias"})),
              HasSubstr("\"deepseek2.expert_gating_func\" is missing, and so is exp_probs_b"));
}

TEST_F(GgufModelTest, a_scale_of_zero_is_refused) {
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    GgufWriter writer = tiny_deepseek2({"expert_weights_scale"});
    EXPECT_THAT(refusal(writer.f32("deepseek2.expert_weights_scale", scale), ErrorCode::kCorrupt),
                HasSubstr("\"deepseek2.expert_weights_scale\" is"));
  }
}

TEST_F(GgufModelTest, what_deepseek_models_have_and_this_family_has_not_is_refused_by_key) {
  EXPECT_THAT(refusal(tiny_deepseek2().text("deepseek2.rope.scaling.type", "yarn")),
              HasSubstr("\"deepseek2.rope.scaling.type\" is \"yarn\""));
  EXPECT_THAT(refusal(tiny_deepseek2().f32("deepseek2.rope.scaling.factor", 40)),
              HasSubstr("\"deepseek2.rope.scaling.factor\" is 40"));
  EXPECT_THAT(refusal(tiny_deepseek2().f32("deepseek2.rope.scaling.yarn_log_multiplier", 0.1f)),
              HasSubstr("unknown key \"deepseek2.rope.scaling.yarn_log_multiplier\""));
  EXPECT_THAT(refusal(tiny_deepseek2().u32("deepseek2.attention.indexer.top_k", 2048)),
              HasSubstr("unknown key \"deepseek2.attention.indexer.top_k\""));
  GgufWriter heads = tiny_deepseek2({"attention.head_count_kv"});
  EXPECT_THAT(refusal(heads.u32("deepseek2.attention.head_count_kv", 3)),
              HasSubstr("\"deepseek2.attention.head_count_kv\" is 3"));
}

TEST_F(GgufModelTest, keys_without_effect_and_of_others_are_accepted) {
  GgufWriter writer = tiny_deepseek2();
  writer.text("deepseek2.rope.scaling.type", "none").u32("deepseek2.vocab_size", 16);
  writer.boolean("deepseek2.rope.scaling.finetuned", false);
  writer.u32("deepseek2.expert_group_count", 0).u32("deepseek2.expert_group_used_count", 0);
  writer.text("general.url", "x").text("quantize.imatrix.file", "y").text("split.who", "z");
  writer.u32("tokenizer.ggml.anything", 1).text("other.key", "w");
  const auto model = translate(writer);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(value_of(model->config, "n_group").as_int(), 1);
}

TEST_F(GgufModelTest, keys_of_the_wrong_type_are_named) {
  GgufWriter heads = tiny_deepseek2({"attention.head_count"});
  heads.array("deepseek2.attention.head_count", kGgufUint32, 2,
              little_endian(2u) + little_endian(2u));
  EXPECT_THAT(refusal(heads, ErrorCode::kCorrupt),
              HasSubstr("\"deepseek2.attention.head_count\" is not an integer"));
  GgufWriter eps = tiny_deepseek2({"attention.layer_norm_rms_epsilon"});
  EXPECT_THAT(
      refusal(eps.text("deepseek2.attention.layer_norm_rms_epsilon", "1e-5"), ErrorCode::kCorrupt),
      HasSubstr("is not a finite number"));
  GgufWriter norm = tiny_deepseek2({"expert_weights_norm"});
  EXPECT_THAT(refusal(norm.u32("deepseek2.expert_weights_norm", 1), ErrorCode::kCorrupt),
              HasSubstr("is neither true nor false"));
  GgufWriter huge = tiny_deepseek2({"block_count"});
  EXPECT_THAT(refusal(huge.u32("deepseek2.block_count", ~0u), ErrorCode::kCorrupt),
              HasSubstr("\"deepseek2.block_count\" is not an integer from 0 to 2147483647"));
}

TEST_F(GgufModelTest, keys_that_contradict_the_tensors_are_named) {
  EXPECT_THAT(refusal(tiny_deepseek2().u32("deepseek2.vocab_size", 15), ErrorCode::kCorrupt),
              HasSubstr("\"deepseek2.vocab_size\" is 15, but \"token_embd.weight\" has 16 rows"));
  EXPECT_THAT(refusal(tiny_deepseek2({"token_embd.weight"}), ErrorCode::kCorrupt),
              HasSubstr("\"token_embd.weight\" is missing"));
  GgufWriter rope = tiny_deepseek2({"rope.dimension_count"});
  EXPECT_THAT(refusal(rope.u32("deepseek2.rope.dimension_count", 5), ErrorCode::kCorrupt),
              HasSubstr("\"deepseek2.attention.key_length_mla\" leaves nothing"));
}

TEST_F(GgufModelTest, a_missing_output_is_the_embedding) {
  const auto model = translate(tiny_deepseek2({"output.weight"}));
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE(value_of(model->config, "tie_word_embeddings").as_bool());
  EXPECT_EQ(find(*model, "lm_head.weight"), nullptr);
}

TEST_F(GgufModelTest, sampling_defaults_and_end_tokens_reach_the_generation_config) {
  GgufWriter writer = tiny_deepseek2();
  writer.f32("general.sampling.temp", 0.7f)
      .raw("general.sampling.top_k", kGgufInt32, little_endian<std::int32_t>(40));
  writer.f32("general.sampling.top_p", 0.95f).f32("general.sampling.penalty_repeat", 1.1f);
  writer.u32("tokenizer.ggml.eos_token_id", 3).u32("tokenizer.ggml.eot_token_id", 5);
  writer.u32("tokenizer.ggml.eom_token_id", 3);
  const auto model = translate(writer);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->generation_config.dump(),
            R"({"eos_token_id":[3,5],"temperature":0.7,"top_k":40,"top_p":0.95,)"
            R"("repetition_penalty":1.1,"do_sample":true})");
  EXPECT_EQ(value_of(model->config, "eos_token_id").dump(), "[3,5]");
}

// ---- draft layers

TEST_F(GgufModelTest, the_draft_layers_are_the_last_ones_that_block_count_counts) {
  GgufWriter writer = tiny_deepseek2();
  writer.u32("deepseek2.nextn_predict_layers", 1);
  writer.tensor("blk.1.nextn.eh_proj.weight", {16, 8});
  writer.tensor("blk.1.nextn.shared_head_norm.weight", {8});
  const auto model = translate(writer);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(value_of(model->config, "num_hidden_layers").as_int(), 1);
  EXPECT_EQ(value_of(model->config, "num_nextn_predict_layers").as_int(), 1);
  EXPECT_NE(find(*model, "model.layers.1.eh_proj.weight"), nullptr);
  EXPECT_NE(find(*model, "model.layers.1.shared_head.norm.weight"), nullptr);
}

TEST_F(GgufModelTest, draft_tensors_outside_draft_layers_are_refused) {
  EXPECT_THAT(
      refusal(tiny_deepseek2().tensor("blk.1.nextn.eh_proj.weight", {16, 8}), ErrorCode::kCorrupt),
      AllOf(HasSubstr("blk.1.nextn.eh_proj.weight"), HasSubstr("nextn_predict_layers (0)")));
  EXPECT_THAT(
      refusal(tiny_deepseek2().u32("deepseek2.nextn_predict_layers", 2), ErrorCode::kCorrupt),
      HasSubstr("\"deepseek2.nextn_predict_layers\" is 2, which leaves nothing"));
}

// ---- names

TEST_F(GgufModelTest, unknown_tensors_are_refused_by_name) {
  for (const char* name : {"rope_freqs.weight", "blk.0.attn_rot_embd.weight", "blk.0.attn_q.weight",
                           "blk.0.ffn_gate.bias", "blk.00.attn_norm.weight", "blk.x", "blk.-1.a",
                           "blk.99999999999999999999.attn_norm.weight", "blk.0"}) {
    EXPECT_THAT(refusal(tiny_deepseek2().tensor(name, {8})),
                HasSubstr("tensor \"" + std::string(name) + "\" is not part of this architecture"));
  }
  EXPECT_THAT(refusal(tiny_deepseek2().tensor("blk.2.attn_norm.weight", {8}), ErrorCode::kCorrupt),
              AllOf(HasSubstr("blk.2.attn_norm.weight"), HasSubstr("block_count of 2")));
  EXPECT_THAT(refusal(tiny_deepseek2().tensor("blk.1.ffn_gate_up_exps.weight", {8, 12, 2}),
                      ErrorCode::kCorrupt),
              HasSubstr("says again what another tensor"));
}

TEST_F(GgufModelTest, unknown_architectures_get_the_list_of_known_ones) {
  EXPECT_THAT(refusal(GgufWriter().text("general.architecture", "foo").tensor("t", {1})),
              HasSubstr("architecture \"foo\" is not supported; supported: deepseek2, glm4moe"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", {1}), ErrorCode::kCorrupt),
              HasSubstr("no \"general.architecture\""));
  EXPECT_THAT(refusal(GgufWriter().text("general.type", "adapter").tensor("t", {1})),
              HasSubstr("is no model: its \"general.type\" is \"adapter\""));
}

// ---- glm4moe

TEST_F(GgufModelTest, glm4moe_becomes_glm4_moe) {
  const auto model = translate(tiny_glm4moe());
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->config.dump(),
            R"({"model_type":"glm4_moe","architectures":["Glm4MoeForCausalLM"],)"
            R"("num_hidden_layers":2,"num_nextn_predict_layers":0,"first_k_dense_replace":1,)"
            R"("vocab_size":16,"tie_word_embeddings":false,"hidden_size":8,)"
            R"("intermediate_size":12,"max_position_embeddings":64,"num_attention_heads":2,)"
            R"("rms_norm_eps":1e-05,"rope_theta":1000000.0,"hidden_act":"silu",)"
            R"("num_key_value_heads":1,"head_dim":4,"partial_rotary_factor":0.5,)"
            R"("attention_bias":true,"use_qk_norm":true,"n_routed_experts":2,)"
            R"("num_experts_per_tok":1,"n_shared_experts":1,"moe_intermediate_size":6,)"
            R"("n_group":1,"topk_group":1,"routed_scaling_factor":2.5,"norm_topk_prob":true})");
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.bias",
        "model.layers.1.self_attn.v_proj.bias", "model.layers.1.self_attn.q_norm.weight",
        "model.layers.0.post_attention_layernorm.weight", "model.layers.1.self_attn.o_proj.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.1.mlp.shared_experts.up_proj.weight",
        "model.layers.1.mlp.experts.1.up_proj.weight"}) {
    EXPECT_NE(find(*model, name), nullptr) << name;
  }
}

TEST_F(GgufModelTest, glm4moe_without_biases_and_head_norms_is_told_by_its_tensors) {
  Names without;
  for (const std::string block : {"blk.0.", "blk.1."}) {
    for (const char* part : {"q", "k", "v"}) without.insert(block + "attn_" + part + ".bias");
    for (const char* part : {"q", "k"}) without.insert(block + "attn_" + part + "_norm.weight");
  }
  const auto model = translate(tiny_glm4moe(without));
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_FALSE(value_of(model->config, "attention_bias").as_bool());
  EXPECT_FALSE(value_of(model->config, "use_qk_norm").as_bool());
}

TEST_F(GgufModelTest, the_scale_of_glm4moe_is_assumed_for_the_released_models_only) {
  EXPECT_THAT(refusal(tiny_glm4moe({"expert_weights_scale"}), ErrorCode::kCorrupt),
              HasSubstr("\"glm4moe.expert_weights_scale\" is missing"));
  for (const auto& [experts, scale] : {std::pair{128u, 1.0}, {160u, 2.5}}) {
    Names without = {"expert_weights_scale", "expert_count"};
    for (const char* part : {"gate", "up", "down"}) {
      without.insert(std::string("blk.1.ffn_") + part + "_exps.weight");
    }
    GgufWriter writer = tiny_glm4moe(without);
    const auto model = translate(writer.u32("glm4moe.expert_count", experts));
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(value_of(model->config, "routed_scaling_factor").as_double(), scale);
    EXPECT_THAT(model->notes, ElementsAre(HasSubstr("no expert_weights_scale")));
  }
}

TEST_F(GgufModelTest, what_glm4moe_does_not_compute_is_refused_by_key) {
  GgufWriter widths = tiny_glm4moe({"attention.value_length"});
  EXPECT_THAT(refusal(widths.u32("glm4moe.attention.value_length", 5)),
              HasSubstr("\"glm4moe.attention.value_length\" is 5"));
  GgufWriter rope = tiny_glm4moe({"rope.dimension_count"});
  EXPECT_THAT(refusal(rope.u32("glm4moe.rope.dimension_count", 6), ErrorCode::kCorrupt),
              HasSubstr("\"glm4moe.rope.dimension_count\" is 6"));
  EXPECT_THAT(refusal(tiny_glm4moe().array("glm4moe.rope.dimension_sections", kGgufInt32, 1,
                                           little_endian<std::int32_t>(8))),
              HasSubstr("unknown key \"glm4moe.rope.dimension_sections\""));
}

}  // namespace
}  // namespace glint
