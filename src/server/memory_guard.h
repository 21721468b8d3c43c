// Keeps a server within the memory it was promised: says when requests must wait, and when some
// must end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace glint {

class MemoryGuard {
 public:
  enum class Level {
    kFine,
    kShort,  // nothing new
    kOver    // about to break the limit: something has to end
  };
  // limit 0: always fine. `slack`: memory for requests; a quarter of it left is short, a sixteenth
  // over. `resident` and `trim` are the system's (base/heap.h) but in tests.
  // counts_files: whether pages of mapped files are part of the promise.
  MemoryGuard(std::uint64_t limit, std::uint64_t slack, bool counts_files);
  MemoryGuard(std::uint64_t limit, std::uint64_t slack, std::function<std::uint64_t()> resident,
              std::function<void()> trim);

  // Looks, at most every few milliseconds, and where memory is short gives back what the allocator
  // keeps, a few times a second.
  Level level();
  std::uint64_t limit() const { return limit_; }

 private:
  using Clock = std::chrono::steady_clock;
  Level look() const;

  const std::uint64_t limit_, slack_;
  const std::function<std::uint64_t()> resident_;
  const std::function<void()> trim_;
  Level level_ = Level::kFine;
  Clock::time_point looked_ = {}, trimmed_ = {};
};

}  // namespace glint
