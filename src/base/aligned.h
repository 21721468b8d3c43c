// An uninitialised, 64-byte aligned, move-only buffer; large ones ask for huge pages.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/check.h"

namespace glint {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Anonymous memory, zero when first touched. Aborts when the system has none left: callers bound
  // nbytes first.
  explicit AlignedBuffer(std::size_t nbytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    AlignedBuffer(std::move(other)).swap(*this);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  void swap(AlignedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
  }
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;  // bytes given by the system
};

}  // namespace glint
