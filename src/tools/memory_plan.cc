#include "tools/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "models/weight_form.h"
#include "tools/flags.h"
#include "tools/plan_report.h"
#include "tools/step_memory.h"

namespace glint {
namespace {

constexpr int kLeastContext = 256;  // below this a model is refused rather than started
constexpr int kLeastChunk = 128;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::uint64_t less(std::uint64_t a, std::uint64_t b) {
  return a - std::min(a, b);
}

// The experts of a model, as they would be streamed.
struct StreamedExperts {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;       // of all of them
  std::uint64_t slot_bytes = 0;  // memory for one
  std::uint64_t reading = 0;     // memory that reading takes besides
  std::uint64_t of_layer = 0;    // bytes that the experts of one layer take in the checkpoint
  std::uint64_t fewest() const {
    constexpr std::uint64_t kFewestSlots = 2;
    return count == 0 ? 0 : kFewestSlots * slot_bytes + reading;
  }
};

StreamedExperts streamed_experts(const ModelInfo& info, const LoadOptions& load) {
  // What direct reads bring along, of each matrix.
  constexpr std::uint64_t kSlack = 3 * 8192;
  constexpr std::uint64_t kBuffers = 3;
  StreamedExperts experts;
  std::uint64_t matrices = 0, stored = 0;
  bool packs = false;
  for (const PlacedGroup& group : place_weights(info, load)) {
    if (group.stored.part != WeightPart::kExperts) continue;
    matrices += group.stored.count;
    experts.bytes += group.bytes;
    stored += group.stored.nbytes * group.stored.count;
    packs = packs || group.form.format == QuantFormat::kPanels || group.stored.in_parts ||
            group.stored.expanded;
  }
  experts.count = matrices / 3;
  if (experts.count == 0 || info.num_experts == 0) return {};
  experts.slot_bytes = experts.bytes / experts.count + kSlack;
  if (packs) experts.reading = kBuffers * (stored / experts.count + kSlack);
  const std::uint64_t num_layers =
      std::max<std::uint64_t>(1, experts.count / static_cast<std::uint64_t>(info.num_experts));
  experts.of_layer = stored / num_layers;
  if (load.draft != DraftLayer::kOff) {  // one more layer like the others
    experts.bytes += experts.bytes / num_layers;
    experts.count += static_cast<std::uint64_t>(info.num_experts);
  }
  return experts;
}

// What is in memory; with `streamed` without its experts.
WeightBytes use_of_weights(const ModelInfo& info, const LoadOptions& load,
                           const StreamedExperts* streamed) {
  WeightBytes use;
  std::uint64_t all = 0, own = 0;
  for (const PlacedGroup& group : place_weights(info, load)) {
    const std::uint64_t bytes = group.in_file ? group.beside : group.bytes;
    all += group.bytes;
    own += bytes;
    switch (group.stored.part) {
      case WeightPart::kAttention:
        use.attention += bytes;
        break;
      case WeightPart::kExperts:
        if (streamed == nullptr) use.experts += bytes;
        break;
      case WeightPart::kFeedForward:
        use.dense += bytes;
        break;
      case WeightPart::kRouter:
      case WeightPart::kVectors:
        use.small += bytes;
        break;
      case WeightPart::kEmbedding:
      case WeightPart::kHead:
        use.embedding += bytes;
        break;
    }
  }
  if (load.draft != DraftLayer::kOff && info.weight_bytes > 0) {
    // Becomes what the others become; its experts are streamed with theirs.
    const double change = static_cast<double>(own) / static_cast<double>(info.weight_bytes);
    use.draft =
        streamed == nullptr
            ? static_cast<std::uint64_t>(
                  change * static_cast<double>(info.draft.weight_bytes + info.draft.copy_bytes))
            : info.draft.copy_bytes + less(info.draft.weight_bytes, streamed->of_layer);
  }
  if (load.vision && info.images) use.vision = info.images->weight_bytes;
  return use;
}

// Rows of f32 compute take twice their bf16 bytes; of states and snapshots a part does, so that
// this is more than they take.
CacheSpec spec_of(CacheSpec spec, Compute compute) {
  if (compute == Compute::kBf16) return spec;
  spec.row_bytes *= 2;
  spec.state_bytes *= 2;
  spec.snapshot_bytes *= 2;
  return spec;
}

class Planner {
 public:
  Planner(const ModelInfo& info, const CacheSpec& cache, const MemoryRequest& request,
          const AvailableMemory& available, const StreamedExperts* experts)
      : info_(info),
        cache_(spec_of(cache, request.load.compute)),
        request_(request),
        experts_(experts),
        longest_(info.max_position_embeddings) {
    plan_.sequences = request.num_sequences;
    plan_.streams = experts != nullptr;
    plan_.bytes_per_token = cache_.bytes_per_page() / kPageSize;
    plan_.bytes_per_sequence = cache_.state_stride();
    plan_.prefix.bytes = asked_prefix_bytes(request.prefix, cache_);
    set_limit(available);
    plan_.parts = use_of_weights(info, request.load, experts);
    plan_.weights = plan_.parts.total();
    plan_.program = request.resident + kProgramGrowth +
                    static_cast<std::uint64_t>(request.threads) * kThreadBytes;
    plan_.requests =
        request.serves ? std::clamp(plan_.limit / 16, 24 * kMiB, 1024 * kMiB) : kOwnRequests;
    plan_.requests = std::max(plan_.requests, request.body_bytes * kBytesOfBody);
    plan_.images = image_bound(info, request.load, request.image_tokens);
  }

  Result<MemoryPlan> run() {
    choose_chunk();
    choose_states();
    choose_context();
    set(plan_.context);
    if (request_.num_snapshots < 0 && needed() > plan_.limit) {
      give_up_snapshots(cache_, needed() - plan_.limit, plan_.states);
    }
    set_alternatives();
    if (needed() > plan_.limit) return exhausted(refusal());
    GLINT_TRY(plan_.prefix, plan_prefix(request_.prefix, cache_, plan_.num_pages,
                                        experts_ == nullptr ? plan_.limit - needed() : 0));
    if (experts_ != nullptr) {
      const std::uint64_t whole = experts_->count * experts_->slot_bytes + experts_->reading;
      plan_.streamed = experts_->bytes;
      plan_.num_experts = experts_->count;
      plan_.expert_cache = std::min(whole, plan_.limit - plan_.total());
      plan_.num_slots = std::min(experts_->count,
                                 (plan_.expert_cache - experts_->reading) / experts_->slot_bytes);
    }
    return plan_;
  }

 private:
  // Pages of the program that were not touched yet, stacks, page tables, what allocators keep.
  static constexpr std::uint64_t kProgramGrowth = 20 * kMiB;
  static constexpr std::uint64_t kThreadBytes = kMiB / 2;
  static constexpr std::uint64_t kOwnRequests = 8 * kMiB;  // of a command's own conversation

  void set_limit(const AvailableMemory& available) {
    if (request_.limit > 0) {
      plan_.limit = request_.limit;
      plan_.limit_source = "--memory";
      return;
    }
    // What this process has is not available any more, but its own.
    plan_.limit = available.bytes > ~std::uint64_t{0} - request_.resident
                      ? available.bytes
                      : available.bytes + request_.resident;
    plan_.limit_source = available.source;
    if (experts_ == nullptr) return;
    // What is available changes: nobody promised it.
    plan_.limit = plan_.limit / 10 * 9;
    plan_.limit_source += ", less a tenth,";
  }

  StepShape step(int context, int sequences) const {
    return {.tokens = std::max(plan_.chunk, sequences),
            .sequences = sequences,
            .context = context,
            .threads = request_.threads};
  }

  // What depends on the context and the sequences.
  struct Use {
    std::uint64_t cache, states, scratch, logits;
    std::uint64_t total() const { return cache + states + scratch + logits; }
  };
  Use use(int context, int sequences) const {
    const StepShape shape = step(context, sequences);
    return {pages_for(context, sequences) * cache_.bytes_per_page(),
            static_cast<std::uint64_t>(sequences) * cache_.state_stride(),
            workspace_bound(info_, request_.load, shape),
            logits_bound(info_, request_.load, shape)};
  }
  std::uint64_t fixed() const {
    return plan_.weights + plan_.program + plan_.requests + plan_.images +
           asked_prefix_bytes(request_.prefix, cache_) +
           (experts_ == nullptr ? 0 : experts_->fewest());
  }
  // All of the plan so far, with the fewest experts.
  std::uint64_t needed() const {
    return plan_.total() + (experts_ == nullptr ? 0 : experts_->fewest());
  }
  std::uint64_t asked_snapshots() const {
    return request_.num_snapshots > 0 ? plan_.states.snapshots : 0;
  }

  // Long steps read each weight for more tokens, but what they need grows too.
  void choose_chunk() {
    plan_.chunk = request_.chunk;
    const auto too_large = [this] {
      const std::uint64_t bytes = use(least_context(), request_.num_sequences).scratch;
      return bytes > plan_.limit / 8 && bytes > less(plan_.limit, fixed()) / 4;
    };
    while (!request_.fixed_chunk && plan_.chunk > kLeastChunk && too_large()) plan_.chunk /= 2;
  }

  void choose_states() {
    const int context = request_.context > 0 ? request_.context : least_context();
    const Use least = use(context, request_.num_sequences);
    plan_.states = plan_states(cache_, request_.num_sequences, request_.num_snapshots,
                               less(plan_.limit, fixed() + least.scratch + least.logits));
  }

  int least_context() const { return std::min(longest_, kLeastContext); }

  // The largest context up to `most` for which `fits`, in pages, or all of `most`; 0: none.
  static int largest(int most, const std::function<bool(int)>& fits) {
    if (fits(most)) return most;
    int low = 0, high = most / kPageSize + 1;  // pages that fit, that do not
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (fits(middle * kPageSize) ? low : high) = middle;
    }
    return std::min(most, low * kPageSize);
  }

  void choose_context() {
    plan_.context = request_.context;
    plan_.context_reason = ContextReason::kAsked;
    if (request_.context > 0) return;
    const bool all = request_.context == MemoryRequest::kLargest;
    const int most = all ? longest_ : std::min(longest_, kDefaultContext);
    // Where experts are streamed most of the room is theirs.
    const std::uint64_t share = experts_ == nullptr ? 1 : all ? 2 : 4;
    const int least = least_context();
    const Use base = use(least, request_.num_sequences);
    const std::uint64_t taken = fixed() + plan_.states.snapshots;
    const std::uint64_t room = less(plan_.limit, taken + base.total()) / share + base.total();
    plan_.context = largest(most, [&](int context) {
      return use(context, request_.num_sequences).total() <= room &&
             taken + base.total() <= plan_.limit;
    });
    plan_.context_reason = plan_.context < most        ? ContextReason::kMemory
                           : plan_.context == longest_ ? ContextReason::kModel
                                                       : ContextReason::kDefault;
    plan_.context = std::max(plan_.context, least);
  }

  void set(int context) {
    const Use now = use(context, request_.num_sequences);
    plan_.context = context;
    plan_.num_pages = pages_for(context, request_.num_sequences);
    plan_.cache = now.cache;
    plan_.scratch = now.scratch;
    plan_.logits = now.logits;
  }

  void set_alternatives() {
    const std::uint64_t taken = fixed() + asked_snapshots();
    const auto fits = [&](int context, int sequences) {
      return taken + use(context, sequences).total() <= plan_.limit;
    };
    plan_.largest_context =
        largest(longest_, [&](int context) { return fits(context, request_.num_sequences); });
    int low = 0, high = kMostSequences + 1;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (fits(plan_.context, middle) ? low : high) = middle;
    }
    plan_.most_sequences = low;
  }

  std::string refusal() const {
    std::string advice;
    if (plan_.largest_context >= kPageSize && plan_.largest_context < plan_.context) {
      advice += fmt::format("; the largest that fits is --ctx {}", plan_.largest_context);
      if (request_.num_sequences > 1)
        advice += fmt::format(" with {} sequences", request_.num_sequences);
    }
    if (plan_.most_sequences > 0 && plan_.most_sequences < request_.num_sequences)
      advice += fmt::format("; with --parallel {} it fits", plan_.most_sequences);
    if (request_.num_snapshots > 0) {
      const std::uint64_t room = less(plan_.limit, needed() - plan_.states.snapshots);
      const std::uint64_t fit = room / cache_.snapshot_stride();
      if (needed() - plan_.states.snapshots <= plan_.limit)
        advice += fmt::format("; with --snapshots {} it fits", fit);
    }
    if (request_.prefix.bytes > 0 && needed() - request_.prefix.bytes <= plan_.limit) {
      const std::uint64_t room = plan_.limit - (needed() - request_.prefix.bytes);
      advice += fmt::format("; the largest that fits is --prefix-cache {}MiB", room / kMiB);
    }
    if (advice.empty() && plan_.images > 0) advice += "; --vision off saves what images take";
    if (request_.limit == 0) advice += "; --memory SIZE overrides the measurement";
    const auto text = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
    const std::string fewest =
        experts_ == nullptr ? ""
                            : fmt::format(" + the fewest experts {}", text(experts_->fewest()));
    return fmt::format("not enough memory{}: {}{} = {}, but {} gives {}{}",
                       experts_ == nullptr ? "" : ", even with the experts on disk",
                       plan_sum(plan_), fewest, text(needed()), plan_.limit_source,
                       text(plan_.limit), advice);
  }

  const ModelInfo& info_;
  const CacheSpec cache_;
  const MemoryRequest& request_;
  const StreamedExperts* experts_;
  const int longest_;
  MemoryPlan plan_;
};

}  // namespace

std::size_t pages_for(int context, int sequences) {
  const auto pages = (static_cast<std::size_t>(context) + kPageSize - 1) / kPageSize;
  return pages * static_cast<std::size_t>(sequences);
}

Result<MemoryPlan> plan_memory(const ModelInfo& info, const CacheSpec& cache,
                               const MemoryRequest& request, const AvailableMemory& available) {
  if (request.context > info.max_position_embeddings) {
    return invalid_argument(
        fmt::format("--ctx {} is more than the {} positions this model was made for "
                    "(max_position_embeddings in config.json)",
                    request.context, info.max_position_embeddings));
  }
  const bool can_stream = request.streaming != ExpertStreaming::kOff &&
                          request.load.placement == WeightPlacement::kResident;
  const StreamedExperts experts =
      can_stream ? streamed_experts(info, request.load) : StreamedExperts();
  if (request.streaming == ExpertStreaming::kOn && experts.count == 0) {
    return unsupported(info.num_experts == 0
                           ? "--stream-experts on: this model has no routed experts"
                           : "--stream-experts on and --mmap exclude each other: one reads experts "
                             "into memory of its own, the other leaves all weights to the system");
  }
  if (request.streaming == ExpertStreaming::kOn)
    return Planner(info, cache, request, available, &experts).run();
  auto resident = Planner(info, cache, request, available, nullptr).run();
  if (resident || experts.count == 0) return resident;
  // A shorter context and no more prefix cache than that leaves, with all weights in memory, are
  // better than what disks give.
  MemoryRequest least = request;
  least.context = std::min(info.max_position_embeddings, kLeastContext);
  least.prefix.bytes = 0;
  const bool can_ask_less = request.context > 0 || request.prefix.bytes > 0;
  if (can_ask_less && Planner(info, cache, least, available, nullptr).run()) return resident;
  return Planner(info, cache, request, available, &experts).run();
}

}  // namespace glint
