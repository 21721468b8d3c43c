#include "tools/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "models/weight_form.h"
#include "tools/flags.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

constexpr int kDefaultContext = 32768;
constexpr int kLeastContext = 256;  // below this a model is refused rather than started

// The number behind `key` in a file of "key value" or "key: value kB" lines.
std::optional<std::uint64_t> keyed_number(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name, unit;
    std::uint64_t value = 0;
    if (!(words >> name >> value)) continue;
    if (name.ends_with(':')) name.pop_back();
    if (name != key) continue;
    return words >> unit && unit == "kB" ? value * 1024 : value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> lone_number(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  const auto value = parse_integer(word);  // "max" is none
  if (!value || *value < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

struct CgroupNames {
  const char* limit;
  const char* usage;
  const char* droppable[2];  // page cache, in memory.stat
};
constexpr CgroupNames kVersion2 = {
    "memory.max", "memory.current", {"inactive_file", "active_file"}};
constexpr CgroupNames kVersion1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};

void lower_by_cgroup(const fs::path& folder, const CgroupNames& names, AvailableMemory& memory) {
  const auto limit = lone_number(folder / names.limit);
  const auto usage = lone_number(folder / names.usage);
  if (!limit || !usage) return;
  std::uint64_t droppable = 0;
  for (const char* name : names.droppable) {
    droppable += keyed_number(folder / "memory.stat", name).value_or(0);
  }
  const std::uint64_t pinned = *usage - std::min(*usage, droppable);
  const std::uint64_t left = *limit - std::min(*limit, pinned);
  if (left >= memory.bytes) return;
  memory = {left, fmt::format("the cgroup's {}", names.limit)};
}

// Every folder from `base`/`path` up to `base`.
void lower_by_tree(const fs::path& base, const fs::path& path, const CgroupNames& names,
                   AvailableMemory& memory) {
  for (fs::path at = path.relative_path();; at = at.parent_path()) {
    lower_by_cgroup(base / at, names, memory);
    if (at.empty()) return;
  }
}

std::string largest_that_fits(std::uint64_t room, std::uint64_t page_bytes, int sequences,
                              int most) {
  const std::uint64_t pages = room / page_bytes / static_cast<std::uint64_t>(sequences);
  const std::uint64_t tokens =
      std::min<std::uint64_t>(pages * kPageSize, static_cast<std::uint64_t>(most));
  if (tokens < kPageSize) return "";
  return sequences == 1 ? fmt::format("; the largest that fits is --ctx {}", tokens)
                        : fmt::format(
                              "; the largest that fits is --ctx {} with {} sequences, and fewer "
                              "sequences (--parallel) leave room for longer ones",
                              tokens, sequences);
}

}  // namespace

AvailableMemory available_memory(const fs::path& root) {
  AvailableMemory memory{std::numeric_limits<std::uint64_t>::max(), "no limit known"};
  if (const auto free = keyed_number(root / "proc/meminfo", "MemAvailable")) {
    memory = {*free, "MemAvailable"};
  }
  std::ifstream membership(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(membership, line)) {  // "0::/path" or "7:memory:/path"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    if (controllers.empty()) lower_by_tree(root / "sys/fs/cgroup", path, kVersion2, memory);
    if (controllers == "memory")
      lower_by_tree(root / "sys/fs/cgroup/memory", path, kVersion1, memory);
  }
  return memory;
}

std::size_t pages_for(int context, int sequences) {
  const auto pages = (static_cast<std::size_t>(context) + kPageSize - 1) / kPageSize;
  return pages * static_cast<std::size_t>(sequences);
}

namespace {

// Of a sum: empty for a model without recurrent states.
std::string states_term(const CacheSpec& cache, const MemoryRequest& request,
                        const MemoryPlan& plan) {
  const std::string states = describe_states(cache, request.num_sequences, plan.states);
  return states.empty() ? "" : states + " + ";
}

// States do not shrink with the context: how many sequences there would be room for. Empty for a
// model without, and where these are not too many.
std::string fewer_that_fit(const CacheSpec& cache, const MemoryRequest& request,
                           const MemoryPlan& plan, std::uint64_t room) {
  const auto sequences = static_cast<std::uint64_t>(request.num_sequences);
  const std::uint64_t kept = request.num_snapshots > 0 ? plan.states.snapshots : 0;
  const std::uint64_t of_each =
      plan.states.states / sequences + plan.logits / sequences + plan.cache / sequences;
  const std::uint64_t fits = (room - std::min(room, kept)) / std::max<std::uint64_t>(1, of_each);
  if (cache.state_bytes == 0 || fits == 0 || fits >= sequences) return "";
  return fmt::format("; with --parallel {} it fits", fits);
}

Result<MemoryPlan> plan_resident(const ModelInfo& info, const CacheSpec& cache,
                                 const MemoryRequest& request, const AvailableMemory& available) {
  const std::uint64_t page_bytes = std::max<std::uint64_t>(
      1, cache.bytes_per_page() * (request.load.compute == Compute::kF32 ? 2 : 1));
  const int longest = info.max_position_embeddings;
  if (request.context > longest) {
    return invalid_argument(
        fmt::format("--ctx {} is more than the {} positions this model was made for "
                    "(max_position_embeddings in config.json)",
                    request.context, longest));
  }
  MemoryPlan plan;
  plan.chunk = request.chunk;
  plan.limit = request.limit > 0 ? request.limit : available.bytes;
  plan.limit_source = request.limit > 0 ? "--memory" : available.source;
  plan.weights = resident_bytes(place_weights(info, request.load));
  if (request.load.draft != DraftLayer::kOff && info.weight_bytes > 0) {
    // Becomes what the others become.
    const double change =
        static_cast<double>(plan.weights) / static_cast<double>(info.weight_bytes);
    const std::uint64_t stored = info.draft.weight_bytes + info.draft.copy_bytes;
    plan.weights += static_cast<std::uint64_t>(change * static_cast<double>(stored));
  }
  if (request.load.vision && info.images) plan.weights += info.images->weight_bytes;
  plan.logits = static_cast<std::uint64_t>(request.num_sequences) *
                static_cast<std::uint64_t>(info.vocab_size) * sizeof(float);
  const auto room_beside = [&plan](std::uint64_t taken) {
    return plan.limit - std::min(plan.limit, taken);
  };
  const std::uint64_t fixed = plan.weights + plan.logits;
  plan.states =
      plan_states(cache, request.num_sequences, request.num_snapshots, room_beside(fixed));
  std::uint64_t room = room_beside(fixed + plan.states.total());

  plan.context = request.context;
  if (plan.context == 0) {
    const std::uint64_t fits =
        room / page_bytes / static_cast<std::uint64_t>(request.num_sequences) * kPageSize;
    plan.context = static_cast<int>(std::min<std::uint64_t>(
        fits, static_cast<std::uint64_t>(std::min(longest, kDefaultContext))));
    if (plan.context < std::min(longest, kLeastContext))
      plan.context = std::min(longest, kLeastContext);
  }
  plan.num_pages = pages_for(plan.context, request.num_sequences);
  plan.cache = plan.num_pages * page_bytes;
  if (request.num_snapshots < 0 && plan.total() > plan.limit) {
    give_up_snapshots(cache, plan.total() - plan.limit, plan.states);
    room = room_beside(fixed + plan.states.total());
  }
  if (plan.total() <= plan.limit) return plan;
  return exhausted(fmt::format(
      "not enough memory: weights {} + cache {} ({} x {} tokens) + {}logits {} = {}, "
      "but {} gives {}{}{}",
      format_bytes(static_cast<double>(plan.weights)),
      format_bytes(static_cast<double>(plan.cache)), request.num_sequences, plan.context,
      states_term(cache, request, plan), format_bytes(static_cast<double>(plan.logits)),
      format_bytes(static_cast<double>(plan.total())), plan.limit_source,
      format_bytes(static_cast<double>(plan.limit)),
      largest_that_fits(room, page_bytes, request.num_sequences, longest) +
          fewer_that_fit(cache, request, plan, room_beside(plan.weights)),
      request.limit > 0 ? "" : "; --memory SIZE overrides the measurement"));
}

// The experts of a model, as they would be streamed.
struct StreamedExperts {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;       // of all of them
  std::uint64_t slot_bytes = 0;  // memory for one
  std::uint64_t reading = 0;     // memory that reading takes besides
  std::uint64_t resident = 0;    // the rest of the weights
};

StreamedExperts streamed_experts(const ModelInfo& info, const LoadOptions& load) {
  // What direct reads bring along, of each matrix.
  constexpr std::uint64_t kSlack = 3 * 8192;
  constexpr std::uint64_t kBuffers = 3;
  StreamedExperts experts;
  std::uint64_t matrices = 0, stored = 0;
  bool packs = false;
  for (const PlacedGroup& group : place_weights(info, load)) {
    if (group.stored.part != WeightPart::kExperts) {
      experts.resident += group.bytes;
      continue;
    }
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
  if (load.draft != DraftLayer::kOff) {
    // One more layer like the others; what else it has becomes what the others become.
    const std::uint64_t num_layers = experts.count / static_cast<std::uint64_t>(info.num_experts);
    const std::uint64_t of_layer = stored / std::max<std::uint64_t>(1, num_layers);
    experts.resident += info.draft.copy_bytes + info.draft.weight_bytes -
                        std::min(info.draft.weight_bytes, of_layer);
    experts.bytes += experts.bytes / std::max<std::uint64_t>(1, num_layers);
    experts.count += static_cast<std::uint64_t>(info.num_experts);
  }
  return experts;
}

// What a step of so many tokens takes at its widest, about: the rows of its streams, of what its
// experts read and write, and of the heads.
std::uint64_t workspace_bytes(const ModelInfo& info, int tokens) {
  int head_values = 0;  // of a key, and of a value
  for (const ModelInfo::HeadDim& dim : info.head_dims) {
    if (dim.name == "qk_head_dim" || dim.name == "v_head_dim") head_values += dim.value;
    if (dim.name == "head_dim") head_values += 2 * dim.value;
  }
  const auto u = [](int n) { return static_cast<std::uint64_t>(n); };
  const std::uint64_t per_token = u(info.hidden_size) * (40 + 8 * u(info.experts_per_token)) +
                                  u(info.num_heads) * u(head_values) * 12;
  return u(tokens) * per_token;
}

Result<MemoryPlan> plan_streamed(const ModelInfo& info, const CacheSpec& cache,
                                 const MemoryRequest& request, const AvailableMemory& available,
                                 const StreamedExperts& experts) {
  // The program, its libraries, the tokenizer, threads.
  constexpr std::uint64_t kProcess = std::uint64_t{128} << 20;
  constexpr int kLeastChunk = 128;
  constexpr std::uint64_t kFewestSlots = 2;
  const std::uint64_t page_bytes = std::max<std::uint64_t>(
      1, cache.bytes_per_page() * (request.load.compute == Compute::kF32 ? 2 : 1));
  MemoryPlan plan;
  plan.streams = true;
  // What is available changes: nobody promised it.
  plan.limit = request.limit > 0 ? request.limit : available.bytes / 10 * 9;
  plan.limit_source = request.limit > 0 ? "--memory" : available.source + ", less a tenth,";
  plan.weights = experts.resident;
  if (request.load.vision && info.images) plan.weights += info.images->weight_bytes;
  plan.streamed = experts.bytes;
  plan.num_experts = experts.count;
  plan.logits = static_cast<std::uint64_t>(request.num_sequences) *
                static_cast<std::uint64_t>(info.vocab_size) * sizeof(float);
  // Long steps read each expert for more tokens, but what they need grows too.
  plan.chunk = request.chunk;
  while (!request.fixed_chunk && plan.chunk > kLeastChunk &&
         workspace_bytes(info, plan.chunk) > plan.limit / 8)
    plan.chunk /= 2;
  plan.scratch = kProcess + workspace_bytes(info, plan.chunk);
  const std::uint64_t fewest = kFewestSlots * experts.slot_bytes + experts.reading;
  const std::uint64_t beside = plan.weights + plan.logits + plan.scratch;
  plan.states = plan_states(cache, request.num_sequences, request.num_snapshots,
                            plan.limit - std::min(plan.limit, beside + fewest));
  std::uint64_t fixed = beside + plan.states.total();
  std::uint64_t room = plan.limit - std::min(plan.limit, fixed + fewest);
  const int longest = info.max_position_embeddings;
  plan.context = request.context;
  if (plan.context == 0) {
    // Most of the room is for experts.
    const std::uint64_t fits =
        room / 4 / page_bytes / static_cast<std::uint64_t>(request.num_sequences) * kPageSize;
    plan.context = static_cast<int>(std::clamp<std::uint64_t>(
        fits, static_cast<std::uint64_t>(std::min(longest, kLeastContext)),
        static_cast<std::uint64_t>(std::min(longest, kDefaultContext))));
  }
  plan.num_pages = pages_for(plan.context, request.num_sequences);
  plan.cache = plan.num_pages * page_bytes;
  if (request.num_snapshots < 0 && plan.cache > room) {
    give_up_snapshots(cache, plan.cache - room, plan.states);
    fixed = beside + plan.states.total();
    room = plan.limit - std::min(plan.limit, fixed + fewest);
  }
  const auto text = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  if (plan.cache > room) {
    return exhausted(fmt::format(
        "not enough memory, even with the experts on disk: other weights {} + cache {} ({} x {} "
        "tokens) + {}logits {} + the program and a step of {} tokens {} + the fewest experts {} = "
        "{}, but {} gives {}{}",
        text(plan.weights), text(plan.cache), request.num_sequences, plan.context,
        states_term(cache, request, plan), text(plan.logits), plan.chunk, text(plan.scratch),
        text(fewest), text(fixed + fewest + plan.cache), plan.limit_source, text(plan.limit),
        largest_that_fits(room, page_bytes, request.num_sequences, longest) +
            fewer_that_fit(
                cache, request, plan,
                plan.limit - std::min(plan.limit, plan.weights + plan.scratch + fewest))));
  }
  const std::uint64_t whole = experts.count * experts.slot_bytes + experts.reading;
  plan.expert_cache = std::min(whole, plan.limit - fixed - plan.cache);
  plan.num_slots =
      std::min(experts.count, (plan.expert_cache - experts.reading) / experts.slot_bytes);
  return plan;
}

}  // namespace

Result<MemoryPlan> plan_memory(const ModelInfo& info, const CacheSpec& cache,
                               const MemoryRequest& request, const AvailableMemory& available) {
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
  auto resident = plan_resident(info, cache, request, available);
  if (experts.count == 0 || request.streaming == ExpertStreaming::kOff) return resident;
  const bool fits = resident || resident.error().code != ErrorCode::kExhausted;
  if (request.streaming == ExpertStreaming::kAuto) {
    if (fits) return resident;
    // A shorter context that fits with all weights in memory is better than what disks give.
    MemoryRequest least = request;
    least.context = std::min(info.max_position_embeddings, kLeastContext);
    if (request.context > 0 && plan_resident(info, cache, least, available)) return resident;
  } else if (!fits && resident.error().code == ErrorCode::kInvalidArgument) {
    return resident;
  }
  return plan_streamed(info, cache, request, available, experts);
}

std::uint64_t peak_resident_bytes() {
  return keyed_number("/proc/self/status", "VmHWM").value_or(0);
}

void reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
}

}  // namespace glint
