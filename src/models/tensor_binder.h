// Takes tensors out of a checkpoint by name, shape and dtype, and knows at the end which ones
// nobody asked for. All problems are collected, so that one refusal lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "tensor/weight.h"

namespace glint {

class TensorBinder {
 public:
  // With kResident, matrices get memory of their own, filled by load(); until then their contents
  // are undefined.
  TensorBinder(const Checkpoint& checkpoint, WeightPlacement placement);

  // A matrix [rows, cols]. BF16 and F32 are kept as they are, F16 is widened to float32 (with one
  // log line).
  Weight matrix(const std::string& name, int rows, int cols);
  // A vector [n] as float32.
  std::vector<float> vector(const std::string& name, int n);
  bool has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }
  // Tensors that are left alone on purpose.
  void skip(const std::function<bool(std::string_view)>& matches);

  // Too many problems to go on: a config that promises millions of tensors must not cost minutes.
  bool hopeless() const { return num_problems_ >= 10'000; }

  // kCorrupt or kUnsupported listing every missing, misshapen, unsupported or unused tensor.
  Status finish() const;
  // Copies and widens what matrix() promised. Call it once, after finish() said yes. `pool` may be
  // null; progress (may be empty) gets bytes done and bytes in all, from the calling thread.
  void load(ThreadPool* pool, const std::function<void(std::uint64_t, std::uint64_t)>& progress);

 private:
  const TensorRef* take(const std::string& name, std::initializer_list<std::int64_t> shape);
  void problem(std::string text, bool is_unsupported);

  // A tensor on its way to memory.
  struct Copy {
    const TensorRef* from;
    std::byte* to;
  };

  const Checkpoint& checkpoint_;
  WeightPlacement placement_;
  std::vector<Copy> copies_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> problems_;
  bool unsupported_ = false;
  std::size_t num_problems_ = 0;
};

}  // namespace glint
