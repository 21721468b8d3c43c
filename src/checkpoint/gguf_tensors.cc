#include "checkpoint/gguf_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/file_kind.h"

namespace glint {
namespace {

constexpr GgufTensorName kModelNames[] = {
    {"token_embd.weight", "embed_tokens.weight"},
    {"output_norm.weight", "norm.weight"},
};

constexpr GgufTensorName kSharedLayerNames[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
};

constexpr GgufTensorName kDraftNames[] = {
    {"nextn.eh_proj.weight", "eh_proj.weight"},
    {"nextn.enorm.weight", "enorm.weight"},
    {"nextn.hnorm.weight", "hnorm.weight"},
    {"nextn.embed_tokens.weight", "embed_tokens.weight"},
    {"nextn.shared_head_head.weight", "shared_head.head.weight"},
    {"nextn.shared_head_norm.weight", "shared_head.norm.weight"},
};

// The matrices that lie one below the other in each expert of a stack; newer converters can fuse
// gate and up. Empty: no stack.
std::vector<std::string_view> expert_parts(std::string_view name) {
  if (name == "ffn_gate_exps.weight") return {"gate_proj"};
  if (name == "ffn_up_exps.weight") return {"up_proj"};
  if (name == "ffn_down_exps.weight") return {"down_proj"};
  if (name == "ffn_gate_up_exps.weight") return {"gate_proj", "up_proj"};
  return {};
}

std::optional<std::string_view> look_up(std::span<const GgufTensorName> names,
                                        std::string_view name) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const GgufTensorName& row) { return row.gguf == name; });
  return found == names.end() ? std::nullopt : std::optional(found->hugging_face);
}

struct BlockName {
  std::int64_t block;
  std::string_view rest;
};

// "blk.12.REST"
std::optional<BlockName> parse_block_name(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  BlockName parsed{};
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), parsed.block);
  if (error != std::errc() || end == digits.data() + digits.size() || *end != '.') {
    return std::nullopt;
  }
  if (parsed.block < 0 || (digits[0] == '0' && digits[1] != '.')) return std::nullopt;
  parsed.rest = digits.substr(static_cast<std::size_t>(end - digits.data()) + 1);
  return parsed;
}

class Renamer {
 public:
  Renamer(const GgufFile& file, const GgufLayout& layout) : file_(file), layout_(layout) {}

  Result<std::vector<TensorRef>> run() {
    for (const TensorRef& tensor : file_.tensors()) GLINT_TRY_VOID(add(tensor));
    return std::move(renamed_);
  }

 private:
  Status add(const TensorRef& tensor) {
    if (const auto block = parse_block_name(tensor.name)) return add_of_block(tensor, *block);
    if (const auto name = look_up(kModelNames, tensor.name))
      return put(tensor, fmt::format("{}{}", layout_.prefix, *name), tensor.shape, tensor.bytes);
    if (tensor.name == "output.weight")
      return put(tensor, "lm_head.weight", tensor.shape, tensor.bytes);
    return unknown(tensor);
  }

  Status add_of_block(const TensorRef& tensor, const BlockName& block) {
    if (block.block >= layout_.num_blocks) {
      return corrupt(
          fmt::format("{} is of a block that the file, with a block_count of {}, does "
                      "not have; convert the model again",
                      gguf_tensor_place(tensor), layout_.num_blocks));
    }
    const std::string prefix = fmt::format("{}layers.{}.", layout_.prefix, block.block);
    if (const auto parts = expert_parts(block.rest); !parts.empty()) {
      return add_experts(tensor, prefix + "mlp.experts.", parts);
    }
    auto name = look_up(kSharedLayerNames, block.rest);
    for (const auto& table : layout_.layer_names) {
      if (!name) name = look_up(table, block.rest);
    }
    if (!name && (name = look_up(kDraftNames, block.rest)) && !is_draft(block.block)) {
      return corrupt(
          fmt::format("{} belongs to a draft layer, which block {} is not by "
                      "nextn_predict_layers ({}); convert the model again",
                      gguf_tensor_place(tensor), block.block, layout_.num_draft_layers));
    }
    if (!name) return unknown(tensor);
    return put(tensor, prefix + std::string(*name), tensor.shape, tensor.bytes);
  }

  bool is_draft(std::int64_t block) const {
    return block >= layout_.num_blocks - layout_.num_draft_layers;
  }

  // [experts, parts * rows, cols] as parts of each expert, [rows, cols].
  Status add_experts(const TensorRef& tensor, const std::string& prefix,
                     const std::vector<std::string_view>& parts) {
    const auto num_parts = static_cast<std::int64_t>(parts.size());
    if (tensor.shape.size() != 3 || tensor.shape[0] != layout_.num_experts ||
        tensor.shape[1] % num_parts != 0) {
      return corrupt(
          fmt::format("{} does not stack {} experts (expert_count); convert the model "
                      "again",
                      gguf_tensor_place(tensor), layout_.num_experts));
    }
    const std::vector<std::int64_t> shape = {tensor.shape[1] / num_parts, tensor.shape[2]};
    const std::size_t nbytes =
        tensor.bytes.size() / static_cast<std::size_t>(layout_.num_experts) / parts.size();
    std::size_t at = 0;
    for (std::int64_t expert = 0; expert < layout_.num_experts; ++expert) {
      for (const std::string_view part : parts) {
        GLINT_TRY_VOID(put(tensor, fmt::format("{}{}.{}.weight", prefix, expert, part), shape,
                           tensor.bytes.subspan(at, nbytes)));
        at += nbytes;
      }
    }
    return {};
  }

  Status put(const TensorRef& from, std::string name, std::vector<std::int64_t> shape,
             std::span<const std::byte> bytes) {
    if (!taken_.insert(name).second) {
      return corrupt(
          fmt::format("{} says again what another tensor of the file does ({}); convert "
                      "the model again",
                      gguf_tensor_place(from), name));
    }
    renamed_.push_back({std::move(name), from.dtype, std::move(shape), bytes, from.file});
    return {};
  }

  static Error unknown(const TensorRef& tensor) {
    return unsupported(
        fmt::format("{} is not part of this architecture as this version of glint "
                    "knows it",
                    gguf_tensor_place(tensor)));
  }

  const GgufFile& file_;
  const GgufLayout& layout_;
  std::vector<TensorRef> renamed_;
  std::set<std::string> taken_;
};

}  // namespace

std::string gguf_tensor_place(const TensorRef& tensor) {
  return fmt::format("{}: tensor {}", tensor.file->path().string(), quote_name(tensor.name));
}

const TensorRef* find_gguf_tensor(const GgufFile& file, std::string_view name) {
  const auto found = std::find_if(file.tensors().begin(), file.tensors().end(),
                                  [&](const TensorRef& tensor) { return tensor.name == name; });
  return found == file.tensors().end() ? nullptr : &*found;
}

Result<std::vector<TensorRef>> rename_gguf_tensors(const GgufFile& file, const GgufLayout& layout) {
  return Renamer(file, layout).run();
}

}  // namespace glint
