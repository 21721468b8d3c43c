// Scratch memory of a step: a stack of 64-byte aligned blocks. Marks are released in reverse order,
// so a step that ran once at its largest size allocates nothing later. Used by the engine thread
// only; per-worker blocks are handed out by it beforehand.
#pragma once

#include <cstddef>
#include <vector>

#include "base/aligned.h"

namespace glint {

class Workspace {
 public:
  // Gives its blocks back when it goes out of scope.
  class Scope {
   public:
    explicit Scope(Workspace& workspace)
        : workspace_(workspace),
          chunk_(workspace.chunk_),
          used_(workspace.used_),
          level_(workspace.level_) {}
    ~Scope() {
      workspace_.chunk_ = chunk_;
      workspace_.used_ = used_;
      workspace_.level_ = level_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    std::size_t chunk_;
    std::size_t used_;
    std::size_t level_;
  };

  // Address space for blocks of nbytes together, so that they lie in one chunk, without the gaps at
  // the ends of many; memory is touched as it is used. Before the first block only.
  void reserve(std::size_t nbytes);

  std::byte* bytes(std::size_t nbytes);
  template <typename T>
  T* array(std::size_t count) {
    return reinterpret_cast<T*>(bytes(count * sizeof(T)));
  }
  std::size_t capacity() const;
  // The most bytes that blocks took at once.
  std::size_t peak() const { return peak_; }

 private:
  friend class Scope;
  std::vector<AlignedBuffer> chunks_;  // each at least as large as the one before
  std::size_t chunk_ = 0;              // the one in use
  std::size_t used_ = 0;               // bytes of it
  std::size_t level_ = 0;              // bytes of all blocks
  std::size_t peak_ = 0;
};

}  // namespace glint
