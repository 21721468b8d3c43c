// The ends of the draft (multi-token prediction) layer of DeepSeek-V3 (arXiv 2412.19437, 2.2): what
// it makes of a token and the state before it, and its head. Between them lies an ordinary sparse
// layer of the family (decoder_model.h).
#pragma once

#include <vector>

#include "models/layers/decoder.h"

namespace glint {

// Slots of the layer's cache rows before it stay empty (models/batch.h).
inline constexpr int kFirstDraftSlot = 1;

struct DraftEnds {
  Weight embed_tokens;                  // [vocab, hidden]
  std::vector<float> enorm, hnorm;      // [hidden]
  Weight eh_proj;                       // [hidden, 2 hidden]: of the embedding, then of the state
  std::vector<float> shared_head_norm;  // [hidden]
  Weight shared_head;                   // [vocab, hidden]
};

// Whether to load the draft layer. Where it is required and there is none: why not.
Result<bool> wants_draft(const DecoderConfig& config, const Checkpoint& checkpoint,
                         DraftLayer option);
// The layer may have an embedding and a head of its own, which as a rule equal the network's: then,
// as without them, memory is shared with `ends`.
DraftEnds bind_draft_ends(TensorBinder& binder, const DecoderConfig& config,
                          const DecoderEnds& ends);
// Skips the draft layers that nothing reads: all but the first, which is read when
// `first_is_bound`.
void skip_draft_layers(TensorBinder& binder, const DecoderConfig& config, bool first_is_bound);
// Fills info.mtp_present and info.draft, whose cache has a layer more than info.cache.
void describe_draft(const DecoderConfig& config, const Checkpoint& checkpoint, ModelInfo& info);

// h = eh_proj(norm(embedding), norm(hidden)) for the tokens of the batch; hidden and h [tokens,
// hidden].
void draft_input(const DecoderStep& step, const DraftEnds& ends, const float* hidden, float* h);

}  // namespace glint
