#include "server/memory_guard.h"

#include <algorithm>
#include <utility>

#include "base/heap.h"

namespace glint {

MemoryGuard::MemoryGuard(std::uint64_t limit, std::uint64_t slack, bool counts_files)
    : MemoryGuard(limit, slack, counts_files ? resident_now : resident_without_files, trim_heap) {}

MemoryGuard::MemoryGuard(std::uint64_t limit, std::uint64_t slack,
                         std::function<std::uint64_t()> resident, std::function<void()> trim)
    : limit_(limit),
      slack_(std::min(slack, limit)),
      resident_(std::move(resident)),
      trim_(std::move(trim)) {}

MemoryGuard::Level MemoryGuard::look() const {
  const std::uint64_t used = resident_();
  if (used > limit_ - slack_ / 16) return Level::kOver;
  return used > limit_ - slack_ / 4 ? Level::kShort : Level::kFine;
}

MemoryGuard::Level MemoryGuard::level() {
  constexpr auto kBetweenLooks = std::chrono::milliseconds(2);
  constexpr auto kBetweenTrims = std::chrono::milliseconds(250);
  if (limit_ == 0) return Level::kFine;
  const auto now = Clock::now();
  if (now - looked_ < kBetweenLooks) return level_;
  looked_ = now;
  level_ = look();
  if (level_ != Level::kFine && now - trimmed_ >= kBetweenTrims) {
    trim_();
    trimmed_ = Clock::now();
    level_ = look();
  }
  return level_;
}

}  // namespace glint
