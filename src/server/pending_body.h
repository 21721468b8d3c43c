// How many bytes of request bodies a server has in memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace glint {

// A request's part of the bodies in memory; gives it back when it goes, on any thread.
class PendingBody {
 public:
  PendingBody() = default;
  PendingBody(std::shared_ptr<std::atomic<std::size_t>> total, std::size_t nbytes)
      : total_(std::move(total)), nbytes_(nbytes) {
    total_->fetch_add(nbytes_);
  }
  PendingBody(PendingBody&& other) noexcept
      : total_(std::move(other.total_)), nbytes_(std::exchange(other.nbytes_, 0)) {}
  PendingBody& operator=(PendingBody&& other) noexcept {
    std::swap(total_, other.total_);
    std::swap(nbytes_, other.nbytes_);
    return *this;
  }
  PendingBody(const PendingBody&) = delete;
  PendingBody& operator=(const PendingBody&) = delete;
  ~PendingBody() {
    if (total_ != nullptr) total_->fetch_sub(nbytes_);
  }

 private:
  std::shared_ptr<std::atomic<std::size_t>> total_;
  std::size_t nbytes_ = 0;
};

}  // namespace glint
