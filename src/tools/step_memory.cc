#include "tools/step_memory.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "base/integers.h"
#include "kernels/table.h"
#include "media/image.h"
#include "models/weight_form.h"

namespace glint {
namespace {

constexpr std::uint64_t kFloat = sizeof(float);
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::uint64_t u(int n) {
  return static_cast<std::uint64_t>(std::max(0, n));
}

// Rows of activations are packed in blocks, whose columns are padded for the widest kernels.
std::uint64_t packed(std::uint64_t rows, std::uint64_t columns, std::uint64_t element) {
  const std::uint64_t padded = (rows + kRowBlock - 1) / kRowBlock * kRowBlock;
  return padded * ((columns + 63) / 64 * 64) * element + 64;
}

class Bound {
 public:
  Bound(const ModelInfo& info, const LoadOptions& load, const StepShape& shape)
      : info_(info),
        shape_(shape),
        element_(load.compute == Compute::kF32 ? 4 : 2),
        tokens_(u(shape.tokens)),
        hidden_(u(info.hidden_size)) {
    std::set<QuantFormat> of_experts, of_feed_forward;
    for (const PlacedGroup& group : place_weights(info, load)) {
      const WeightGroup& stored = group.stored;
      const std::uint64_t other = stored.rows == hidden_ ? stored.cols : stored.rows;
      if (stored.part == WeightPart::kExperts) {
        expert_width_ = std::max(expert_width_, other);
        of_experts.insert(group.form.format);
      } else if (stored.part == WeightPart::kFeedForward) {
        dense_width_ = std::max(dense_width_, other);
        of_feed_forward.insert(group.form.format);
      } else if (stored.part == WeightPart::kAttention) {
        attention_width_ = std::max({attention_width_, stored.rows, stored.cols});
        if (stored.cols == hidden_) projected_width_ = std::max(projected_width_, stored.rows);
      }
    }
    if (info.weights.empty()) expert_width_ = dense_width_ = 4 * hidden_;  // config.json alone
    attention_width_ = std::max(attention_width_, hidden_);
    mixes_experts_ = of_experts.size() > 1;
    mixes_dense_ = of_feed_forward.size() > 1;
  }

  std::uint64_t bytes() const {
    const std::uint64_t widest = std::max({attention(), feed_forward(), heads()});
    // Lists of jobs and blocks, and what rounding to cache lines takes.
    return (shared() + widest) / 64 * 65 + u(shape_.threads) * worker() + 2 * kMiB;
  }

 private:
  std::uint64_t dim(std::string_view name) const {
    for (const ModelInfo::HeadDim& dim : info_.head_dims)
      if (dim.name == name) return u(dim.value);
    return 0;
  }
  // A norm, and its rows packed for as many kinds of kernels as one layer may have.
  std::uint64_t normed(std::uint64_t rows, std::uint64_t width) const {
    return rows * width * kFloat + 2 * packed(rows, width, element_);
  }

  // The residual, what a sublayer reads and writes, angles, and which keys were chosen.
  std::uint64_t shared() const {
    const std::uint64_t streams = u(info_.residual_streams);
    std::uint64_t bytes =
        tokens_ * hidden_ * kFloat * (streams + (streams > 1 ? 2 : 1)) + tokens_ * 1024;
    if (streams > 1) {
      const std::uint64_t at_once = std::min<std::uint64_t>(tokens_, 256);
      bytes += tokens_ * streams * (streams + 1) * kFloat + normed(at_once, streams * hidden_) +
               at_once * streams * (streams + 2) * (kFloat + 8);
    }
    return bytes + tokens_ * u(info_.chosen_keys) * kFloat;
  }

  std::uint64_t attention() const {
    const std::uint64_t rank = dim("kv_lora_rank");
    const std::uint64_t of_model = rank > 0 ? latent_attention(rank) : grouped_attention();
    return std::max(of_model, dim("kda_head_dim") > 0 ? linear_attention() : 0);
  }

  // models/layers/gqa.cc
  std::uint64_t grouped_attention() const {
    const std::uint64_t head = dim("head_dim");
    const std::uint64_t q = u(info_.num_heads) * head, kv = u(info_.num_kv_heads) * head;
    const std::uint64_t pages = u(shape_.sequences) * u(info_.num_kv_heads) *
                                (u(shape_.context) / kPageSize + 1) * sizeof(void*) * 2;
    return tokens_ * (2 * q + 2 * kv) * kFloat + tokens_ * q * element_ + normed(tokens_, hidden_) +
           packed(tokens_, q, element_) + pages + loaded_keys(2 * head) +
           partials(ceil_div(info_.num_heads, std::max(1, info_.num_kv_heads)), head);
  }

  // models/layers/mla.cc
  std::uint64_t latent_attention(std::uint64_t rank) const {
    const std::uint64_t heads = u(info_.num_heads), context = u(shape_.context);
    const std::uint64_t rope = dim("qk_rope_head_dim"), nope = dim("qk_nope_head_dim");
    const std::uint64_t key = nope + rope, value = dim("v_head_dim"), width = rank + rope;
    const std::uint64_t of_tokens = tokens_ * (heads * (key + value) + width) * kFloat +
                                    packed(tokens_, heads * value, element_);
    // Before attention: the queries' latents, and the indexer's queries, keys and gates.
    const std::uint64_t index = dim("index_head_dim");
    std::uint64_t projecting = normed(tokens_, hidden_) + 2 * tokens_ * projected_width_ * kFloat +
                               normed(tokens_, projected_width_);
    if (index > 0) {
      projecting += tokens_ * (attention_width_ + 2 * index) * kFloat + normed(tokens_, hidden_) +
                    std::min(std::max(kScores, context), tokens_ * context) * kFloat +
                    u(shape_.threads) * context * 8;
    }
    const std::uint64_t absorbing = std::min<std::uint64_t>(tokens_, kAbsorbedTokens);
    const std::uint64_t pages = context / kPageSize + 1;
    const std::uint64_t absorbed =
        heads * (packed(absorbing, nope, element_) + packed(absorbing, rank, element_)) +
        absorbing * heads * (width * (kFloat + element_) + rank * kFloat) +
        absorbing * (u(info_.chosen_keys) + 64) * kFloat + loaded_keys(width) +
        u(shape_.sequences) * pages * sizeof(void*) + partials(info_.num_heads, rank);
    const std::uint64_t head = (pages + 1) * kPageSize * (key + value) * element_;
    const std::uint64_t at_once =
        std::min(std::max(kExpandedBytes, std::min(heads, u(shape_.threads)) * head), heads * head);
    const std::uint64_t expanded =
        2 * packed(context, rank, element_) + context * rope * element_ +
        tokens_ * heads * key * element_ + at_once +
        u(shape_.threads) * (kAttendSpan * (nope + value) + kRowBlock * (rank + width)) * kFloat +
        2 * heads * pages * sizeof(void*) + partials(1, value);
    return of_tokens + std::max({projecting, absorbed, expanded});
  }

  // models/layers/kda.cc
  std::uint64_t linear_attention() const {
    return tokens_ * attention_width_ * kFloat * 6 + 2 * normed(tokens_, hidden_) +
           packed(tokens_, attention_width_, element_) +
           u(shape_.threads) * dim("kda_head_dim") * (dim("kda_head_dim") + 64 * 16) * kFloat;
  }

  // Keys, and values, of a span that each thread gathers or unpacks.
  std::uint64_t loaded_keys(std::uint64_t width) const {
    return u(shape_.threads) * kAttendSpan * width * element_;
  }

  // What attend() keeps of spans before it adds them up: of few blocks at a time.
  std::uint64_t partials(int rows_per_query, std::uint64_t value) const {
    const std::uint64_t rows = u(std::max(kTaskRows, rows_per_query));
    const std::uint64_t spans = u(shape_.context) / kAttendSpan + 1;
    const std::uint64_t of_block = spans * rows * (value + 2) * kFloat;
    const std::uint64_t few = 4 * u(shape_.threads);  // blocks, or each adds up its own spans
    return std::max(of_block, std::min(kPartialBytes, few * of_block)) +
           u(shape_.threads) * rows * (2 * value + 1024) * kFloat;
  }

  std::uint64_t feed_forward() const {
    const std::uint64_t experts = u(info_.num_experts);
    const std::uint64_t picks = tokens_ * u(info_.experts_per_token);
    // Each expert's rows fill up a block.
    const std::uint64_t rows = picks + (kRowBlock - 1) * std::min(experts, picks);
    std::uint64_t bytes = tokens_ * hidden_ * kFloat;
    bytes += packed(tokens_, hidden_, element_) + packed(tokens_, dense_width_, element_);
    if (mixes_dense_)
      bytes += 2 * tokens_ * dense_width_ * kFloat + packed(tokens_, hidden_, element_);
    if (picks == 0) return bytes;
    bytes += picks * 4 * kFloat + tokens_ * experts * kFloat + experts * 512 +
             packed(rows, hidden_, element_) + packed(rows, expert_width_, element_);
    if (mixes_experts_)
      bytes += 2 * rows * expert_width_ * kFloat + packed(rows, hidden_, element_);
    // The next layer's router, asked ahead where experts are streamed.
    return bytes + normed(tokens_, hidden_) + tokens_ * experts * kFloat;
  }

  std::uint64_t heads() const {
    const std::uint64_t rows = std::min(tokens_, u(shape_.sequences) * (1 + kMaxGuesses) + 64);
    return 2 * tokens_ * hidden_ * kFloat + rows * hidden_ * kFloat + normed(rows, hidden_);
  }

  // A thread's own: rows that products widen, and tiles.
  std::uint64_t worker() const {
    const std::uint64_t widest = std::max(
        {hidden_ * u(info_.residual_streams), attention_width_, dense_width_, expert_width_});
    return kMiB / 2 + widest * 64 * kFloat;
  }

  // As in mla.cc, attention.cc and kpool_indexer.cc.
  static constexpr std::uint64_t kAbsorbedTokens = 256;
  static constexpr std::uint64_t kExpandedBytes = 64 * kMiB;
  static constexpr std::uint64_t kPartialBytes = 16 * kMiB;
  static constexpr std::uint64_t kScores = std::uint64_t{1} << 22;
  static constexpr int kTaskRows = 128;

  const ModelInfo& info_;
  const StepShape& shape_;
  const std::uint64_t element_, tokens_, hidden_;
  std::uint64_t expert_width_ = 0, dense_width_ = 0, attention_width_ = 0;
  std::uint64_t projected_width_ = 0;  // the most that attention makes of a residual at once
  bool mixes_experts_ = false, mixes_dense_ = false;
};

}  // namespace

std::uint64_t workspace_bound(const ModelInfo& info, const LoadOptions& load,
                              const StepShape& shape) {
  return Bound(info, load, shape).bytes();
}

std::uint64_t logits_bound(const ModelInfo& info, const LoadOptions& load, const StepShape& shape) {
  constexpr std::uint64_t kPromptRows = 64;  // as the engine judges at most in a step
  const std::uint64_t sequences = u(shape.sequences), vocabulary = u(info.vocab_size);
  const bool drafts = load.draft != DraftLayer::kOff;
  std::uint64_t rows = sequences + std::min(kPromptRows, u(shape.tokens));
  std::uint64_t states = 0;
  if (drafts) {
    rows += sequences * (kMaxGuesses + 1);
    states = (2 * u(shape.tokens) + 3 * sequences) * u(info.hidden_size) * kFloat;
  }
  // Sampling copies a row, and sorts what is left of it.
  const std::uint64_t sampling = u(shape.threads) * vocabulary * 4 * kFloat;
  return rows * vocabulary * kFloat + sampling + states;
}

std::uint64_t image_bound(const ModelInfo& info, const LoadOptions& load, int max_tokens) {
  if (!load.vision || !info.images) return 0;
  const ImageInput& tower = *info.images;
  constexpr std::uint64_t kTileRows = 512;        // as in layers/vision_tower.cc
  constexpr std::uint64_t kPixelBytes = 12;       // of a progressive JPEG while it is decoded
  constexpr std::uint64_t kCanvasBytes = 3 + 12;  // of the canvas's pixels, as bytes and as floats
  const std::uint64_t element = load.compute == Compute::kF32 ? 4 : 2;
  const std::uint64_t side = u(tower.patch_size);
  const std::uint64_t patches = u(max_tokens) * u(tower.merge) * u(tower.merge);
  const std::uint64_t values =
      u(tower.channels) * u(tower.temporal_patch_size) * side * side * kFloat;
  const std::uint64_t of_pixels =
      kMaxImagePixels * kPixelBytes + patches * side * side * kCanvasBytes;
  const std::uint64_t width = u(tower.hidden_size);
  const std::uint64_t in_tower = patches * width * (kFloat + 3 * element) +
                                 u(max_tokens) * u(info.hidden_size) * kFloat +
                                 kTileRows * (width * 8 + u(tower.intermediate_size) * 3) * kFloat;
  // The next request's image is decoded while the tower reads this one's patches.
  return of_pixels + 2 * patches * values + in_tower;
}

}  // namespace glint
