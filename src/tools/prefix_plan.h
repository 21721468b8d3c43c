// How much memory the prefix cache gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "cache/cache.h"

namespace glint {

// What stays of prompts and answers for those that begin alike: --prefix-cache and what begins so.
struct PrefixCacheOptions {
  bool enabled = true;
  std::uint64_t bytes = 0;            // 0: see plan_prefix()
  std::filesystem::path folder = {};  // keeps what leaves memory; empty: nothing does
  std::uint64_t disk_bytes = 0;       // of that; 0: kDefaultDiskBytes
};

inline constexpr std::uint64_t kDefaultDiskBytes = std::uint64_t{16} << 30;
// Memory of what waits to be written there, or that of one page or snapshot if that is more.
inline constexpr std::uint64_t kPrefixQueueBytes = std::uint64_t{64} << 20;

struct PrefixPlan {
  std::uint64_t bytes = 0;      // of memory, beyond the pages that sequences need at full length
  std::size_t num_pages = 0;    // those pages
  std::size_t max_cached = 0;   // pages that may stay when nobody uses them
  std::uint64_t max_bytes = 0;  // of those
};

// Bytes that an asked size takes beside everything else, with what waits to be written to disk; 0
// where no size was asked for.
std::uint64_t asked_prefix_bytes(const PrefixCacheOptions& options, const CacheSpec& spec);
// An asked size is kept beside the pages that `sequence_pages` sequences need at full length, and
// bounds what stays. Otherwise all pages that are idle stay, and beside those an eighth of `left`,
// at most 8 GiB. Errors: kInvalidArgument for a size that holds no page.
Result<PrefixPlan> plan_prefix(const PrefixCacheOptions& options, const CacheSpec& spec,
                               std::size_t sequence_pages, std::uint64_t left);
// "prefix cache 1.2 GiB (1234 pages), 16 GiB on disk in DIR"
std::string describe_prefix(const PrefixCacheOptions& options, const PrefixPlan& plan);

}  // namespace glint
