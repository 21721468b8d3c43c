#include "tools/prefix_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/flags.h"

namespace glint {
namespace {

constexpr std::uint64_t kMostByDefault = std::uint64_t{8} << 30;
// What waits to be written takes no more: see StoreOptions::queue_bytes.
std::uint64_t queue_bytes(const PrefixCacheOptions& options, const CacheSpec& spec) {
  if (!options.enabled || options.folder.empty()) return 0;
  return std::max<std::uint64_t>({kPrefixQueueBytes, spec.bytes_per_page(), spec.snapshot_bytes});
}

std::string text_of(std::uint64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

}  // namespace

std::uint64_t asked_prefix_bytes(const PrefixCacheOptions& options, const CacheSpec& spec) {
  return options.enabled ? options.bytes + queue_bytes(options, spec) : 0;
}

Result<PrefixPlan> plan_prefix(const PrefixCacheOptions& options, const CacheSpec& spec,
                               std::size_t sequence_pages, std::uint64_t left) {
  PrefixPlan plan;
  if (!options.enabled) return plan;
  const std::uint64_t page_bytes = std::max<std::size_t>(1, spec.bytes_per_page());
  if (options.bytes > 0) {
    plan.num_pages = options.bytes / page_bytes;
    plan.max_cached = plan.num_pages;
    if (plan.num_pages == 0) {
      return invalid_argument(
          fmt::format("--prefix-cache {} holds no page of this model, which takes {} for {} "
                      "tokens; ask for more, or for off",
                      text_of(options.bytes), text_of(page_bytes), kPageSize));
    }
  } else {
    plan.num_pages = std::min(left / 8, kMostByDefault) / page_bytes;
    plan.max_cached = sequence_pages + plan.num_pages;
  }
  plan.bytes = plan.num_pages * page_bytes + queue_bytes(options, spec);
  plan.max_bytes = plan.max_cached * page_bytes;
  return plan;
}

std::string describe_prefix(const PrefixCacheOptions& options, const PrefixPlan& plan) {
  if (!options.enabled) return "prefix cache off";
  std::string text = fmt::format("prefix cache of at most {} ({} pages)", text_of(plan.max_bytes),
                                 plan.max_cached);
  if (options.folder.empty()) return text;
  const std::uint64_t disk = options.disk_bytes > 0 ? options.disk_bytes : kDefaultDiskBytes;
  return text + fmt::format(", and {} on disk in {}", text_of(disk), options.folder.string());
}

}  // namespace glint
