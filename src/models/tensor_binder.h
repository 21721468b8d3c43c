// Takes matrices and vectors out of a checkpoint by name and shape, however they are stored, and
// knows at the end which tensors nobody asked for. All problems are collected, so that one refusal
// lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quant_config.h"
#include "checkpoint/stored_matrix.h"
#include "models/model.h"
#include "models/packed_cache.h"
#include "models/streamed_expert.h"
#include "models/weight_form.h"
#include "models/weight_job.h"
#include "tensor/weight.h"

namespace glint {

class TensorBinder {
 public:
  // Only checks names and shapes: matrices have no data.
  explicit TensorBinder(const Checkpoint& checkpoint);
  // With kResident, matrices get memory of their own, filled by load(); until then their contents
  // are undefined. Low-bit weights get it with kMapped too, unless options.repack is false.
  TensorBinder(const Checkpoint& checkpoint, const LoadOptions& options);
  TensorBinder(const TensorBinder&) = delete;
  TensorBinder& operator=(const TensorBinder&) = delete;
  ~TensorBinder();

  // A matrix [rows, cols], in the form it is stored unless options.quant and `use` say otherwise;
  // a quantised one that no kernel reads as it is stored, for its width, becomes floats.
  Weight matrix(const std::string& name, int rows, int cols, MatrixUse use);
  // A tensor `shape` of plain floats, such as a convolution's, seen as [first size, product of the
  // others]; kKept.
  Weight flat_matrix(const std::string& name, std::initializer_list<std::int64_t> shape);
  // Who reads the experts when they are wanted; null when they are to be taken by matrix().
  const std::shared_ptr<ExpertStore>& expert_store() const { return options_.expert_store; }
  // What matrix() would make of it, made later and elsewhere.
  StreamedMatrix streamed_matrix(const std::string& name, int rows, int cols, MatrixUse use);
  // One matrix a head out of a tensor `shape`, seen as [product of all but the last, last]: rows
  // [head * head_rows + first, ... + rows) for each head. Quantised ones become bf16, or float32
  // with f32 compute: heads cut blocks of scales anywhere, and they are 0.7 % of a released model.
  std::vector<Weight> head_matrices(const std::string& name,
                                    std::initializer_list<std::int64_t> shape, int heads,
                                    int head_rows, int first, int rows);
  // A vector [n] as float32.
  std::vector<float> vector(const std::string& name, int n) { return values(name, {n}); }
  // The values of a small tensor as float32. Dimensions of 1 may be missing or more.
  std::vector<float> values(const std::string& name, std::initializer_list<std::int64_t> shape);
  bool has(const std::string& name) const { return stores_matrix(checkpoint_, name); }
  // Whether two matrices are stored alike, down to the bytes, all of which are read; a binder that
  // only checks does not look.
  bool same_contents(const std::string& name, const std::string& other) const;
  // What was read of the files so far stops counting as this process's memory.
  void release() const { checkpoint_.release(); }
  // Tensors that are left alone on purpose.
  void skip(const std::function<bool(std::string_view)>& matches);

  // Too many problems to go on: a config that promises millions of tensors must not cost minutes.
  bool hopeless() const { return num_problems_ >= 10'000; }

  // kCorrupt or kUnsupported listing every missing, misshapen, unsupported or unused tensor. Scales
  // of activations and caches may be unused.
  Status finish() const;
  // Copies, packs and quantises what matrix() promised, or takes it from options.packed_cache. Call
  // it once, after finish() said yes.
  // Progress gets bytes done and bytes in all, from the calling thread.
  void load();

 private:
  using Source = std::shared_ptr<const StoredMatrix>;

  Source take(const std::string& name, std::initializer_list<std::int64_t> shape,
              bool ones_matter = true);
  void problem(std::string text, bool is_unsupported);
  Weight place(const Source& source, std::size_t first, std::size_t rows, MatrixUse use,
               bool expand);
  // Memory for a job that fills it.
  std::byte* allocate(WeightJob job, std::shared_ptr<const void>& owner);
  bool same_bytes(const TensorRef& a, const TensorRef& b) const;
  bool is_silent_bias(const TensorRef& tensor) const;
  void log_formats() const;
  std::uint64_t source_bytes() const;
  void run_jobs();
  std::optional<PackedCache> packed_cache() const;
  PackedKey packed_key() const;

  const Checkpoint& checkpoint_;
  LoadOptions options_;
  bool checks_only_ = false;
  QuantConfig quantisation_;
  std::set<std::string> schemes_;  // of the matrices that were taken
  std::vector<WeightJob> jobs_;
  std::vector<PackedChunk> chunks_;  // the next matrices go to the last
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> problems_;
  bool unsupported_ = false;
  std::size_t num_problems_ = 0;
};

}  // namespace glint
