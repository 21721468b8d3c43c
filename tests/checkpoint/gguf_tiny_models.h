// Whole GGUF models of two layers, a few kilobytes of float32, for the tests of this folder.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gguf_bytes.h"

namespace glint {

using Names = std::set<std::string, std::less<>>;

// A model of two layers, the second with two experts, without the keys and tensors in `without`.
class TinyModel {
 public:
  TinyModel(std::string architecture, Names without)
      : architecture_(std::move(architecture)), without_(std::move(without)) {
    writer.text("general.architecture", architecture_).text("general.type", "model");
  }
  void key(const std::string& name, std::uint32_t value) {
    if (!without_.contains(name)) writer.u32(architecture_ + "." + name, value);
  }
  void number(const std::string& name, float value) {
    if (!without_.contains(name)) writer.f32(architecture_ + "." + name, value);
  }
  void keys(std::initializer_list<std::pair<const char*, std::uint32_t>> list) {
    for (const auto& [name, value] : list) key(name, value);
  }
  void tensor(const std::string& name, std::vector<std::uint64_t> dims) {
    if (!without_.contains(name)) writer.tensor(name, std::move(dims));
  }
  void feed_forward() {
    for (const char* part : {"gate", "up", "down"}) {
      const std::string name = std::string("ffn_") + part;
      const bool down = name == "ffn_down";
      tensor("blk.0." + name + ".weight",
             down ? std::vector<std::uint64_t>{12, 8} : std::vector<std::uint64_t>{8, 12});
      tensor("blk.1." + name + "_exps.weight",
             down ? std::vector<std::uint64_t>{6, 8, 2} : std::vector<std::uint64_t>{8, 6, 2});
      tensor("blk.1." + name + "_shexp.weight",
             down ? std::vector<std::uint64_t>{6, 8} : std::vector<std::uint64_t>{8, 6});
    }
    tensor("blk.1.ffn_gate_inp.weight", {8, 2});
    tensor("blk.1.exp_probs_b.bias", {2});
  }
  void shared() {
    keys({{"block_count", 2},
          {"context_length", 64},
          {"embedding_length", 8},
          {"feed_forward_length", 12},
          {"attention.head_count", 2},
          {"leading_dense_block_count", 1},
          {"expert_count", 2},
          {"expert_used_count", 1},
          {"expert_shared_count", 1},
          {"expert_feed_forward_length", 6},
          {"expert_gating_func", 2}});
    number("attention.layer_norm_rms_epsilon", 1e-5f);
    number("rope.freq_base", 1e6f);
    number("expert_weights_scale", 2.5f);
    if (!without_.contains("expert_weights_norm")) {
      writer.boolean(architecture_ + ".expert_weights_norm", true);
    }
    tensor("token_embd.weight", {8, 16});
    tensor("output_norm.weight", {8});
    tensor("output.weight", {8, 16});
  }
  GgufWriter writer;

 private:
  std::string architecture_;
  Names without_;
};

inline GgufWriter tiny_deepseek2(Names without = {}) {
  TinyModel m("deepseek2", std::move(without));
  m.shared();
  m.keys({{"attention.head_count_kv", 1},
          {"attention.q_lora_rank", 5},
          {"attention.kv_lora_rank", 4},
          {"attention.key_length", 6},
          {"attention.value_length", 4},
          {"attention.key_length_mla", 5},
          {"attention.value_length_mla", 7},
          {"rope.dimension_count", 2}});
  for (const std::string block : {"blk.0.", "blk.1."}) {
    m.tensor(block + "attn_norm.weight", {8});
    m.tensor(block + "ffn_norm.weight", {8});
    m.tensor(block + "attn_q_a.weight", {8, 5});
    m.tensor(block + "attn_q_a_norm.weight", {5});
    m.tensor(block + "attn_q_b.weight", {5, 10});
    m.tensor(block + "attn_kv_a_mqa.weight", {8, 6});
    m.tensor(block + "attn_kv_a_norm.weight", {4});
    m.tensor(block + "attn_k_b.weight", {3, 4, 2});
    m.tensor(block + "attn_v_b.weight", {4, 7, 2});
    m.tensor(block + "attn_output.weight", {14, 8});
  }
  m.feed_forward();
  return std::move(m.writer);
}

inline GgufWriter tiny_glm4moe(Names without = {}) {
  TinyModel m("glm4moe", std::move(without));
  m.shared();
  m.keys({{"attention.head_count_kv", 1},
          {"attention.key_length", 4},
          {"attention.value_length", 4},
          {"rope.dimension_count", 2}});
  for (const std::string block : {"blk.0.", "blk.1."}) {
    m.tensor(block + "attn_norm.weight", {8});
    m.tensor(block + "post_attention_norm.weight", {8});
    for (const auto& [part, rows] :
         {std::pair<std::string, std::uint64_t>{"q", 8}, {"k", 4}, {"v", 4}}) {
      m.tensor(block + "attn_" + part + ".weight", {8, rows});
      m.tensor(block + "attn_" + part + ".bias", {rows});
    }
    m.tensor(block + "attn_q_norm.weight", {4});
    m.tensor(block + "attn_k_norm.weight", {4});
    m.tensor(block + "attn_output.weight", {8, 8});
  }
  m.feed_forward();
  return std::move(m.writer);
}

}  // namespace glint
