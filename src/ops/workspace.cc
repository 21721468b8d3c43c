#include "ops/workspace.h"

#include <algorithm>

#include "base/check.h"

namespace glint {

std::byte* Workspace::bytes(std::size_t nbytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
  while (chunk_ < chunks_.size() && chunks_[chunk_].size() - used_ < rounded) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const std::size_t last = chunks_.empty() ? std::size_t{1} << 20 : chunks_.back().size() * 2;
    chunks_.emplace_back(std::max(last, rounded));
    used_ = 0;
  }
  std::byte* block = chunks_[chunk_].data() + used_;
  used_ += rounded;
  level_ += rounded;
  peak_ = std::max(peak_, level_);
  return block;
}

void Workspace::reserve(std::size_t nbytes) {
  GLINT_CHECK(chunks_.empty());
  if (nbytes > 0) chunks_.emplace_back(nbytes);
}

std::size_t Workspace::capacity() const {
  std::size_t total = 0;
  for (const AlignedBuffer& chunk : chunks_) total += chunk.size();
  return total;
}

}  // namespace glint
