// A network ready to run: what it caches, and one step forward. Const after load; knows no
// requests, sampling or HTTP.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/result.h"
#include "cache/cache.h"
#include "checkpoint/checkpoint.h"
#include "models/batch.h"
#include "ops/exec.h"
#include "ops/matmul.h"
#include "tensor/dtype.h"

namespace glint {

class ExpertStore;  // models/expert_store.h

// Which part of a network a tensor is of. kFeedForward: the experts that every token meets and the
// dense layers. kVectors: norms and biases.
enum class WeightPart { kAttention, kExperts, kFeedForward, kRouter, kVectors, kEmbedding, kHead };
inline constexpr int kNumWeightParts = 7;

// Matrices or vectors of one part of a network that are stored alike and have the same shape in the
// checkpoint.
struct WeightGroup {
  WeightPart part = WeightPart::kAttention;
  DType type = DType::kF32;          // of quantised matrices: that of StoredMatrix
  std::uint64_t rows = 1, cols = 0;  // of each; a vector is one row
  std::uint64_t count = 0;
  std::string storage = {};  // "NVFP4 (e2m1, groups of 16, ...)"; empty: `type` says it all
  std::uint64_t nbytes = 0;  // of each in the checkpoint, scales included
  std::uint64_t scales = 0;  // of each FP8 matrix
  bool in_parts = false;     // codes and scales lie apart in the file, and are put together
  bool expanded = false;     // becomes bf16 or float32 when it is loaded

  std::uint64_t parameters() const { return rows * cols * count; }
};

// An image as a vision tower reads it: `height` times `width` patches, those of a merged cell one
// after the other, each (channel, time, row, column).
struct ImagePatches {
  int height = 0, width = 0;  // patches; multiples of merge
  int merge = 2;              // patches a side of a cell; a cell becomes one token
  std::vector<float> values;  // [height * width, patch_values], normalised
  int tokens() const { return height * width / (merge * merge); }
};

// How a model wants its images, and which tokens stand for them.
struct ImageInput {
  int patch_size = 0, temporal_patch_size = 0, merge = 0, channels = 3;
  std::int32_t image_token = -1, begin_token = -1, end_token = -1;
  std::uint64_t parameters = 0, weight_bytes = 0;  // of the vision tower
  int hidden_size = 0, intermediate_size = 0;      // of it
};

// How the rows of the cache are stored (tensor/row_format.h). kBf16 with float32 compute: float32.
enum class CacheFormat { kBf16, kFp8, kFp4 };

// What a model caches, in each format.
struct CacheSpecs {
  CacheSpec bf16;
  std::optional<CacheSpec> fp8 = {}, fp4 = {};  // empty: the model has no such rows
  // Null: as above.
  const CacheSpec* find(CacheFormat format) const {
    if (format == CacheFormat::kBf16) return &bf16;
    const std::optional<CacheSpec>& spec = format == CacheFormat::kFp8 ? fp8 : fp4;
    return spec ? &*spec : nullptr;
  }
};

// What a model is and costs, from its config (and headers when there are any): the source of
// `inspect` and of plans.
struct ModelInfo {
  std::string model_type;       // "glm4_moe_lite"
  std::string family;           // "GLM-4.7-Flash"
  std::string attention_class;  // "MLA", "GQA", ...
  std::string attention_why;    // the rule that decided it
  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int max_position_embeddings = 0;
  // name, value, whether it is derived rather than read
  struct HeadDim {
    std::string name;
    int value;
    bool derived;
  };
  std::vector<HeadDim> head_dims;
  int mtp_layers = 0;        // declared by the config; the first is the draft layer
  bool mtp_present = false;  // its tensors are in the checkpoint
  std::uint64_t total_parameters = 0;
  std::uint64_t active_parameters = 0;  // per decoded token, embedding row not counted
  std::uint64_t mtp_parameters = 0;     // in the checkpoint, copies of embedding and head included
  std::uint64_t weight_bytes = 0;  // of the tensors the model reads (MTP off), 0 without weights
  std::uint64_t active_weight_bytes = 0;  // read per decoded token at batch 1
  std::string weight_format;              // "bf16"
  std::vector<WeightGroup> weights;       // the tensors the model reads; empty without weights
  int num_experts = 0;                    // of a sparse layer, the shared ones not counted
  int experts_per_token = 0;
  int residual_streams = 1;          // a token's residual is so many times as wide as it is
  int chosen_keys = 0;               // most that sparse attention reads; 0: it reads all
  bool tied_embedding = false;       // the embedding is the head too
  CacheSpecs cache;                  // as Model::cache_spec() of a model loaded with bf16 compute
  std::optional<ImageInput> images;  // for models with a vision tower
  // What the draft layer adds; zeros where the checkpoint has none.
  struct Draft {
    std::uint64_t weight_bytes = 0;  // of its tensors but for the next ones
    // Of its own embedding and head, which are loaded only where they differ from the model's.
    std::uint64_t copy_bytes = 0;
    std::uint64_t active_weight_bytes = 0;  // read per drafted token, the head included
    CacheSpecs cache;                       // in place of the above
  } draft;
  std::vector<std::string> notes;
};

// How multi-head latent attention is computed: absorbed reads the cached latents as they are,
// expanded makes per-head keys and values of them. Equal in exact arithmetic.
enum class LatentForm { kByCost, kAbsorbed, kExpanded };

// kResident: weights are copied into anonymous memory on huge pages, which cores read a fifth to a
// third faster than a file's 4 KiB pages, and which nothing evicts. kMapped: they stay where the
// file is mapped; loading is instant, and the checkpoint may exceed memory.
enum class WeightPlacement { kResident, kMapped };

// What float weights of a checkpoint become while they are loaded: 8- or 4-bit groups of 32 (Q8_0,
// Q4_0). With kQ4 the feed-forward matrices have 4 bits, attention and the head 8. Routers, norms
// and the embedding are kept.
enum class WeightQuant { kAsIs, kQ8, kQ4 };

// What becomes of the draft (multi-token prediction) layer. kOff: its tensors are never touched.
// kIfPresent: it is loaded where the checkpoint has it. kRequired: a model without one is refused.
enum class DraftLayer { kOff, kIfPresent, kRequired };

struct LoadOptions {
  Compute compute = Compute::kBf16;
  CacheFormat cache_format = CacheFormat::kBf16;
  LatentForm latent_form = LatentForm::kByCost;  // kAbsorbed is what --deterministic pins
  WeightPlacement placement = WeightPlacement::kResident;
  WeightQuant quant = WeightQuant::kAsIs;
  DraftLayer draft = DraftLayer::kOff;
  // Loads the vision tower where the checkpoint has one.
  bool vision = true;
  // false: attention reads everything before a token, whatever a sparse model's indexer would
  // choose, whose tensors may then be absent (--dsa off).
  bool sparse_attention = true;
  // Packs low-bit weights into panels (tensor/panel.h) as they are copied; false: they are read as
  // rows of blocks and packed by every product, which is slower, but needs no copy with kMapped.
  bool repack = true;
  // Spreads the memory of weights over the nodes of a NUMA machine, page by page.
  bool interleave = false;
  // A folder that keeps packed weights for the next start (models/packed_cache.h); empty: none is.
  std::filesystem::path packed_cache = {};
  // The routed experts stay on disk and are read when a router chooses them, into memory of
  // `cache_bytes`, or of the least that works when that is more (models/expert_store.h). Needs
  // kResident.
  struct StreamedExperts {
    bool enabled = false;
    std::uint64_t cache_bytes = 0;
    // Reads what the next layer's router would choose from the present layer's input.
    bool read_ahead = true;
    // Which experts were used, for the next start; empty: that is not kept.
    std::filesystem::path history = {};
    bool keeps_history = true;  // false: the file is read, but not written
  } streamed_experts = {};
  // What load_model() made of that; families hand it to nobody but the binder.
  std::shared_ptr<ExpertStore> expert_store = {};
  const KernelTable* kernels = nullptr;  // packs faster than the portable code when given
  ThreadPool* pool = nullptr;            // copies in parallel when given
  // Gets the bytes loaded so far; may be empty.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

// What experts on disk cost so far.
struct ExpertStats {
  std::uint64_t num_experts = 0;   // on disk
  std::uint64_t num_slots = 0;     // that fit memory at once
  std::uint64_t memory_bytes = 0;  // of the slots, and of what reading needs
  std::uint64_t steps = 0;         // through the first of the layers
  std::uint64_t uses = 0;          // of an expert by a step
  std::uint64_t misses = 0;        // those for which it had to be read
  std::uint64_t reads = 0;         // of experts; ahead of their use those of the next
  std::uint64_t reads_ahead = 0, reads_ahead_used = 0;
  std::uint64_t bytes_read = 0;
  double read_seconds = 0;  // in which anything was being read
  double wait_seconds = 0;  // in which a step waited for experts
  double hit_rate() const {
    if (uses == 0) return 0;
    return 1 - static_cast<double>(std::min(misses, uses)) / static_cast<double>(uses);
  }
};

// The streamed experts of a model, as those see it who only run the model.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;
  virtual ExpertStats stats() const = 0;
  // What went wrong since the last call: then the steps since are worthless. Names file and tensor.
  virtual Status take_failure() = 0;
};

// Receives named inner activations of a step, float32 [rows, cols]; for golden tests and debugging.
using Probe = std::function<void(const std::string& name, const float* data, std::size_t rows,
                                 std::size_t cols)>;

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  // With a draft layer its rows are the last layer's, and pages have a state that is the engine's.
  virtual CacheSpec cache_spec() const = 0;
  // Computes the batch, writes its rows to `cache`, and puts float32 logits [logit_rows,
  // vocab_size] into `logits`.
  virtual void forward(Exec& exec, Cache& cache, const Batch& batch,
                       std::span<float> logits) const = 0;
  // The same, calling `probe` with "embed", "layerI.attn", "layerI.mlp", "layerI.out", "norm", ...
  virtual void forward_probed(Exec& exec, Cache& cache, const Batch& batch, std::span<float> logits,
                              const Probe& probe) const = 0;

  // Makes the state of a sequence that has `length` tokens, a multiple of kPageSize: from the
  // snapshot that was taken there (null without cache_spec().snapshot_bytes, and at length 0).
  virtual void start_state(int /*length*/, const std::byte* /*snapshot*/,
                           std::byte* /*state*/) const {}

  // Whether a vision tower was loaded: info().images says what it takes.
  virtual bool can_see() const { return false; }
  // What stands for an image in a prompt: float32 [image.tokens(), hidden_size]. Aborts unless
  // can_see().
  virtual void encode_image(Exec& /*exec*/, const ImagePatches& /*image*/,
                            std::span<float> /*features*/) const {
    GLINT_CHECK(can_see());
  }

  // Whether a draft layer was loaded.
  virtual bool can_draft() const { return false; }
  // One pass of it: writes its rows to `cache`, and float32 logits [logit_rows, vocab_size]. Aborts
  // unless can_draft().
  virtual void draft(Exec& /*exec*/, Cache& /*cache*/, const DraftBatch& /*batch*/,
                     std::span<float> /*logits*/) const {
    GLINT_CHECK(can_draft());
  }

  // Null where all experts are in memory.
  ExpertSource* experts() const { return experts_.get(); }
  void set_experts(std::shared_ptr<ExpertSource> experts) { experts_ = std::move(experts); }
  // ExpertSource::take_failure(): to be asked after every step before its results are used.
  Status take_failure() const { return experts_ == nullptr ? Status{} : experts_->take_failure(); }

 private:
  std::shared_ptr<ExpertSource> experts_;
};

// Cache::start(), with a recurrent state as it is there.
inline SequenceCache start_sequence(const Model& model, Cache& cache,
                                    std::span<const std::int32_t> tokens, std::uint64_t salt = 0) {
  SequenceCache sequence = cache.start(tokens, salt);
  if (sequence.state() != nullptr)
    model.start_state(sequence.length(), sequence.snapshot(), sequence.state());
  return sequence;
}

}  // namespace glint
