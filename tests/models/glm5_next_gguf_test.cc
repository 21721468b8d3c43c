// A GGUF file of GLM-5.3-Flash's design as converters write it, made of the golden case, against
// the case itself; and what its keys may say.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "../base/temp_folder.h"
#include "../checkpoint/gguf_bytes.h"
#include "golden.h"
#include "tensor/dtype.h"

namespace glint::golden {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::uint32_t kGgmlBf16 = 30;

// Which spellings a file has.
struct Spelling {
  std::string architecture = "glm5-next";
  std::string pool_key = "attention.indexer.kpool";  // empty: none
  std::string gate = "indexer.kpool_gate", ape = "indexer.kpool_ape";
  bool uniform_arrays = false;  // numbers that all layers share as an item per layer
};

// Writes the case's checkpoint, as a converter would.
class Converter {
 public:
  Converter(const Checkpoint& checkpoint, Spelling spelling)
      : checkpoint_(checkpoint),
        text_(*checkpoint.config().find("text_config")),
        spelling_(std::move(spelling)) {}

  std::string file() {
    keys();
    for (const auto& [name, tensor] : checkpoint_.tensors()) add(name, tensor);
    for (auto& [name, stack] : stacks_)
      put(name, {stack.cols, stack.rows, stack.count}, kGgmlBf16, stack.bytes);
    std::string out = writer_.header();
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

 private:
  struct Stack {
    std::uint64_t rows, cols, count = 0;
    std::string bytes;
  };

  std::uint32_t number(const char* key) const {
    return static_cast<std::uint32_t>(text_.find(key)->as_int());
  }
  std::string key(const std::string& name) const { return spelling_.architecture + "." + name; }
  void u32(const std::string& name, std::uint32_t value) { writer_.u32(key(name), value); }
  void f32(const std::string& name, double value) {
    if (!spelling_.uniform_arrays) {
      writer_.f32(key(name), static_cast<float>(value));
      return;
    }
    std::string items;
    for (int i = 0; i < 7; ++i) items += little_endian(static_cast<float>(value));
    writer_.array(key(name), kGgufFloat32, 7, items);
  }

  void keys() {
    writer_.text("general.architecture", spelling_.architecture).text("general.type", "model");
    for (const auto& [gguf, config] :
         {std::pair{"embedding_length", "hidden_size"},
          {"feed_forward_length", "intermediate_size"},
          {"context_length", "max_position_embeddings"},
          {"attention.head_count", "num_attention_heads"},
          {"leading_dense_block_count", "first_k_dense_replace"},
          {"attention.q_lora_rank", "q_lora_rank"},
          {"attention.kv_lora_rank", "kv_lora_rank"},
          {"attention.key_length", "kv_lora_rank"},
          {"attention.value_length", "kv_lora_rank"},
          {"attention.key_length_mla", "qk_nope_head_dim"},
          {"attention.value_length_mla", "v_head_dim"},
          {"expert_count", "n_routed_experts"},
          {"expert_used_count", "num_experts_per_tok"},
          {"expert_shared_count", "n_shared_experts"},
          {"expert_feed_forward_length", "moe_intermediate_size"},
          {"attention.indexer.head_count", "index_n_heads"},
          {"attention.indexer.key_length", "index_head_dim"},
          {"attention.indexer.top_k", "index_topk"},
          {"hyper_connection.count", "hc_mult"},
          {"hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters"},
          {"vocab_size", "vocab_size"}}) {
      u32(gguf, number(config));
    }
    if (!spelling_.pool_key.empty()) u32(spelling_.pool_key, number("index_kpool"));
    u32("block_count", number("num_hidden_layers") + 1);
    u32("nextn_predict_layers", 1);
    u32("rope.dimension_count", 0);
    u32("ssm.conv_kernel", 4);
    u32("kda.head_dim", 16);
    u32("expert_gating_func", 2);
    writer_.boolean(key("expert_weights_norm"), true);
    writer_.boolean(key("attention.indexer.kpool_select_tail"), true);
    f32("kda.gate_lower_bound", -5);
    f32("attention.layer_norm_rms_epsilon", 1e-5);
    f32("attention.layer_norm_epsilon", 1e-6);
    f32("expert_weights_scale", 2.5);
    f32("hyper_connection.epsilon", 1e-6);
    f32("swiglu_clamp_exp", text_.find("swiglu_limit")->as_double());
    f32("swiglu_clamp_shexp", text_.find("swiglu_limit")->as_double());
    std::string kv_heads;
    for (const Json& type : text_.find("layer_types")->as_array())
      kv_heads += little_endian<std::uint32_t>(type.as_string() == "linear_attention" ? 0 : 1);
    kv_heads += little_endian<std::uint32_t>(1);
    writer_.array(key("attention.head_count_kv"), kGgufUint32, kv_heads.size() / 4, kv_heads);
  }

  void put(const std::string& name, std::vector<std::uint64_t> dims, std::uint32_t type,
           std::string bytes) {
    writer_.tensors.push_back({name, std::move(dims), type, data_.size()});
    data_ += bytes;
    data_.resize((data_.size() + 31) / 32 * 32);
  }
  static std::string bytes_of(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
  static std::vector<float> values_of(const TensorRef& tensor) {
    std::vector<float> values(tensor.bytes.size() / dtype_bytes(tensor.dtype));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::byte* at = tensor.bytes.data() + i * dtype_bytes(tensor.dtype);
      if (tensor.dtype == DType::kF32) {
        std::memcpy(&values[i], at, 4);
      } else {
        bf16 value;
        std::memcpy(&value, at, 2);
        values[i] = value.to_float();
      }
    }
    return values;
  }

  void add(std::string name, const TensorRef& tensor) {
    const std::string prefix = "model.language_model.", layers = prefix + "layers.";
    if (name.starts_with("model.visual.")) return;
    std::vector<std::uint64_t> dims(tensor.shape.rbegin(), tensor.shape.rend());
    const std::uint32_t type = tensor.dtype == DType::kF32 ? kGgmlF32 : kGgmlBf16;
    std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    if (!name.starts_with(layers)) {
      const std::map<std::string, std::string> names = {
          {"lm_head.weight", "output.weight"},
          {prefix + "embed_tokens.weight", "token_embd.weight"},
          {prefix + "norm.weight", "output_norm.weight"}};
      put(names.at(name), dims, type, bytes);
      return;
    }
    name = name.substr(layers.size());
    const std::string block = "blk." + name.substr(0, name.find('.')) + ".";
    name = name.substr(name.find('.') + 1);
    if (name.starts_with("mlp.experts.")) {
      const std::string part = name.substr(name.rfind("_proj") - (name.contains("up_") ? 2 : 4),
                                           name.contains("up_") ? 2 : 4);
      Stack& stack = stacks_[block + "ffn_" + part + "_exps.weight"];
      stack.rows = dims[1];
      stack.cols = dims[0];
      // The map of tensors has expert 10 before 2; there are as many as ten here: 0 to 9.
      ++stack.count;
      stack.bytes += bytes;
    } else if (name == "self_attn.A_log") {
      std::vector<float> values = values_of(tensor);
      for (float& value : values) value = -std::exp(value);
      put(block + "ssm_a", dims, kGgmlF32, bytes_of(values));
    } else if (name == "self_attn.kv_b_proj.weight") {
      add_kv_b(block, values_of(tensor));
    } else {
      if (name.contains("conv1d")) dims.push_back(1);  // [4, 1, channels, 1]
      put(block + layer_name(name), dims, type, bytes);
    }
  }

  // Per head the keys' half, transposed, and the values' half.
  void add_kv_b(const std::string& block, const std::vector<float>& values) {
    const std::size_t heads = number("num_attention_heads"), c = number("kv_lora_rank");
    const std::size_t nope = number("qk_nope_head_dim"), v = number("v_head_dim");
    std::vector<float> k_b, v_b;
    for (std::size_t head = 0; head < heads; ++head) {
      const float* rows = values.data() + head * (nope + v) * c;
      for (std::size_t i = 0; i < c; ++i) {
        for (std::size_t n = 0; n < nope; ++n) k_b.push_back(rows[n * c + i]);
      }
      v_b.insert(v_b.end(), rows + nope * c, rows + (nope + v) * c);
    }
    put(block + "attn_k_b.weight", {nope, c, heads}, kGgmlF32, bytes_of(k_b));
    put(block + "attn_v_b.weight", {c, v, heads}, kGgmlF32, bytes_of(v_b));
  }

  std::string layer_name(const std::string& name) const {
    const std::map<std::string, std::string> names = {
        {"input_layernorm.weight", "attn_norm.weight"},
        {"post_attention_layernorm.weight", "ffn_norm.weight"},
        {"self_attn.o_proj.weight", "attn_output.weight"},
        {"self_attn.q_proj.weight", "attn_q.weight"},
        {"self_attn.k_proj.weight", "attn_k.weight"},
        {"self_attn.v_proj.weight", "attn_v.weight"},
        {"self_attn.q_conv1d.weight", "ssm_conv1d_q.weight"},
        {"self_attn.k_conv1d.weight", "ssm_conv1d_k.weight"},
        {"self_attn.v_conv1d.weight", "ssm_conv1d_v.weight"},
        {"self_attn.f_a_proj.weight", "ssm_f_a.weight"},
        {"self_attn.f_b_proj.weight", "ssm_f_b.weight"},
        {"self_attn.g_a_proj.weight", "ssm_g_a.weight"},
        {"self_attn.g_b_proj.weight", "ssm_g_b.weight"},
        {"self_attn.b_proj.weight", "ssm_beta.weight"},
        {"self_attn.dt_bias", "ssm_dt.bias"},
        {"self_attn.o_norm.weight", "ssm_norm.weight"},
        {"self_attn.q_a_proj.weight", "attn_q_a.weight"},
        {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"},
        {"self_attn.q_b_proj.weight", "attn_q_b.weight"},
        {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
        {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
        {"self_attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
        {"self_attn.indexer.wk.weight", "indexer.attn_k.weight"},
        {"self_attn.indexer.k_norm.weight", "indexer.k_norm.weight"},
        {"self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"},
        {"self_attn.indexer.weights_proj.weight", "indexer.proj.weight"},
        {"self_attn.indexer.index_kpool_compress_gate", spelling_.gate + ".weight"},
        {"self_attn.indexer.index_kpool_compress_ape", spelling_.ape + ".weight"},
        {"mlp.gate.weight", "ffn_gate_inp.weight"},
        {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
        {"eh_proj.weight", "nextn.eh_proj.weight"},
        {"enorm.weight", "nextn.enorm.weight"},
        {"hnorm.weight", "nextn.hnorm.weight"},
        {"shared_head.norm.weight", "nextn.shared_head_norm.weight"}};
    if (const auto found = names.find(name); found != names.end()) return found->second;
    if (name.starts_with("hc_")) return name + ".weight";
    for (const char* part : {"gate", "up", "down"}) {
      if (name == fmt::format("mlp.{}_proj.weight", part))
        return fmt::format("ffn_{}.weight", part);
      if (name == fmt::format("mlp.shared_experts.{}_proj.weight", part))
        return fmt::format("ffn_{}_shexp.weight", part);
    }
    ADD_FAILURE() << name;
    return name;
  }

  const Checkpoint& checkpoint_;
  const Json& text_;
  Spelling spelling_;
  GgufWriter writer_;
  std::string data_;
  std::map<std::string, Stack> stacks_;
};

class Glm5NextGguf : public testing::Test {
 protected:
  fs::path convert(const Spelling& spelling) {
    return folder_.write("model.gguf", Converter(*checkpoint_, spelling).file());
  }
  Case golden_{"glm5_next"};
  std::shared_ptr<const Checkpoint> checkpoint_ = *Checkpoint::open(golden_.folder());
  TempFolder folder_;
};

TEST_F(Glm5NextGguf, is_the_model_of_its_folder_in_either_spelling) {
  Runner::Options options;
  options.isa = available_isas().back();
  const Spelling spellings[] = {{},
                                {"glm5next", "attention.indexer.block_size",
                                 "indexer_compressor_gate", "indexer_compressor_ape", true}};
  for (const Spelling& spelling : spellings) {
    Runner runner(convert(spelling), options);
    const ModelInfo want = *describe_model(*checkpoint_);
    const ModelInfo& got = runner.model().info();
    EXPECT_EQ(got.attention_why, want.attention_why);
    EXPECT_EQ(got.total_parameters, want.total_parameters);
    EXPECT_EQ(got.mtp_parameters, want.mtp_parameters);
    EXPECT_TRUE(got.mtp_present);
    for (int p = 0; p < golden_.num_prompts(); ++p) {
      EXPECT_LE(max_difference(golden_.expected(fmt::format("prompt{}.logits", p)).values,
                               runner.logits(golden_.prompt(p), 0)),
                golden_.tolerance(p));
    }
  }
}

TEST_F(Glm5NextGguf, without_the_size_of_pools_is_refused_with_both_names_of_the_key) {
  const auto refused = Checkpoint::open(convert({.pool_key = ""}));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message,
              testing::AllOf(HasSubstr("indexer.kpool"), HasSubstr("indexer.block_size")));
}

}  // namespace
}  // namespace glint::golden
