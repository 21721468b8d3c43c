#include "models/layers/draft.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "checkpoint/stored_matrix.h"
#include "models/cache_format.h"

namespace glint {
namespace {

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

std::string draft_prefix(const DecoderConfig& config) {
  return config.layer_prefix(config.num_layers);
}

// eh_proj, stored in whatever way, is what no other layer has: without it there is nothing to run.
bool has_draft(const DecoderConfig& config, const Checkpoint& checkpoint) {
  if (config.mtp_layers == 0) return false;
  const std::string start = draft_prefix(config) + "eh_proj.";
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [&](const auto& tensor) { return tensor.first.starts_with(start); });
}

// `name` where it is another matrix than `original`, whose memory it shares otherwise.
Weight bind_unless_copy(TensorBinder& binder, const std::string& name,
                        const std::string& original_name, const Weight& original, MatrixUse use) {
  if (!binder.has(name)) return original;
  if (!binder.same_contents(name, original_name))
    return binder.matrix(name, static_cast<int>(original.rows()), static_cast<int>(original.cols()),
                         use);
  binder.skip([&](std::string_view tensor) { return place_of(tensor).matrix == name; });
  log_debug(fmt::format("{} equals {}: one is loaded", name, original_name));
  return original;
}

}  // namespace

Result<bool> wants_draft(const DecoderConfig& config, const Checkpoint& checkpoint,
                         DraftLayer option) {
  if (option == DraftLayer::kOff) return false;
  if (has_draft(config, checkpoint)) return true;
  if (option == DraftLayer::kIfPresent) return false;
  if (config.mtp_layers == 0) {
    return unsupported(
        fmt::format("{}: drafts (MTP) were asked for, but the model has no layer for them: "
                    "config.json has no \"num_nextn_predict_layers\"",
                    checkpoint.folder().string()));
  }
  return unsupported(fmt::format(
      "{}: drafts (MTP) were asked for, but of the {} that config.json declares "
      "(\"num_nextn_predict_layers\") the checkpoint lacks the tensors ({}eh_proj.weight, ...); "
      "fetch a checkpoint that kept them, or turn MTP off",
      checkpoint.folder().string(), config.mtp_layers, draft_prefix(config)));
}

DraftEnds bind_draft_ends(TensorBinder& binder, const DecoderConfig& config,
                          const DecoderEnds& ends) {
  const std::string prefix = draft_prefix(config);
  const int d = config.hidden_size;
  DraftEnds w;
  w.enorm = binder.vector(prefix + "enorm.weight", d);
  w.hnorm = binder.vector(prefix + "hnorm.weight", d);
  w.eh_proj = binder.matrix(prefix + "eh_proj.weight", d, 2 * d, MatrixUse::kKept);
  w.shared_head_norm = binder.vector(prefix + "shared_head.norm.weight", d);
  const std::string embedding = config.prefix + "embed_tokens.weight";
  w.embed_tokens = bind_unless_copy(binder, prefix + "embed_tokens.weight", embedding,
                                    ends.embed_tokens, MatrixUse::kKept);
  w.shared_head = bind_unless_copy(binder, prefix + "shared_head.head.weight",
                                   config.tie_word_embeddings ? embedding : "lm_head.weight",
                                   ends.lm_head, MatrixUse::kHead);
  return w;
}

void skip_draft_layers(TensorBinder& binder, const DecoderConfig& config, bool first_is_bound) {
  const std::string first = draft_prefix(config);
  binder.skip([&](std::string_view name) {
    return belongs_to_mtp(name, config) && !(first_is_bound && name.starts_with(first));
  });
}

void describe_draft(const DecoderConfig& config, const Checkpoint& checkpoint, ModelInfo& info) {
  info.mtp_present = has_draft(config, checkpoint);
  if (!info.mtp_present) return;
  const std::string prefix = draft_prefix(config);
  ModelInfo::Draft& draft = info.draft;
  std::uint64_t expert_bytes = 0, head_bytes = 0, own_head_bytes = 0;
  const std::string head =
      config.tie_word_embeddings ? config.prefix + "embed_tokens.weight" : "lm_head.weight";
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::uint64_t bytes = tensor.bytes.size();
    if (place_of(name).matrix == head) head_bytes += bytes;
    if (!name.starts_with(prefix) || is_derived(name)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (rest.starts_with("embed_tokens.") || rest.starts_with("shared_head.head.")) {
      draft.copy_bytes += bytes;
      if (rest.starts_with("shared_head.head.")) own_head_bytes += bytes;
      continue;
    }
    draft.weight_bytes += bytes;
    if (rest.starts_with("mlp.experts.")) {
      expert_bytes += bytes;
    } else {
      draft.active_weight_bytes += bytes;
    }
  }
  draft.active_weight_bytes += expert_bytes *
                                   static_cast<std::uint64_t>(config.router.experts_per_token) /
                                   static_cast<std::uint64_t>(config.router.num_experts) +
                               (own_head_bytes > 0 ? own_head_bytes : head_bytes);
  draft.cache = info.cache;
  for_each_format(draft.cache, [&](CacheFormat, CacheSpec& spec) {
    ++spec.num_layers;
    spec.page_state_bytes = sizeof(std::uint32_t) + size(config.hidden_size) * sizeof(float);
  });
  if (config.mtp_layers > 1) {
    info.notes.push_back(
        fmt::format("of {} MTP layers only the first makes drafts", config.mtp_layers));
  }
}

void draft_input(const DecoderStep& step, const DraftEnds& ends, const float* hidden, float* h) {
  Exec& exec = step.exec;
  Workspace::Scope scope(exec.workspace);
  const int d = step.config.hidden_size;
  const std::size_t width = step.hidden();
  const float eps = step.config.rms_norm_eps;
  auto* both = exec.workspace.array<float>(2 * step.values());
  exec.pool.run(step.batch.tokens.size(), [&](std::size_t t, int) {
    float* row = both + 2 * t * width;
    input_row(step, ends.embed_tokens, t, row);
    exec.kernels.rms_norm(row, ends.enorm.data(), d, eps, row);
    exec.kernels.rms_norm(hidden + t * width, ends.hnorm.data(), d, eps, row + width);
  });
  const MatmulKernels& kernels = matmul_kernels(exec.kernels, ends.eh_proj.format(), step.compute);
  const Activations x = pack(exec, kernels, both, 2 * width, step.tokens(), 2 * d);
  matmul(exec, {x, &ends.eh_proj, h, width});
}

}  // namespace glint
