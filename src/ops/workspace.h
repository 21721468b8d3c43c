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
        : workspace_(workspace), chunk_(workspace.chunk_), used_(workspace.used_) {}
    ~Scope() {
      workspace_.chunk_ = chunk_;
      workspace_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    std::size_t chunk_;
    std::size_t used_;
  };

  std::byte* bytes(std::size_t nbytes);
  template <typename T>
  T* array(std::size_t count) {
    return reinterpret_cast<T*>(bytes(count * sizeof(T)));
  }
  std::size_t capacity() const;

 private:
  friend class Scope;
  std::vector<AlignedBuffer> chunks_;  // each at least as large as the one before
  std::size_t chunk_ = 0;              // the one in use
  std::size_t used_ = 0;               // bytes of it
};

}  // namespace glint
