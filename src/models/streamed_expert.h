// One expert on disk: where its matrices lie in their files, and what makes weights of those bytes
// once they were read. The weights are those that a model with all experts in memory has, bit for
// bit, since the same jobs make them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quant_config.h"
#include "models/model.h"
#include "models/weight_job.h"
#include "ops/gated_mlp.h"

namespace glint {

// A matrix that is made when it is wanted. Borrows the checkpoint.
struct StreamedMatrix {
  std::string name;
  std::vector<const TensorRef*> tensors;
  std::size_t rows = 0;
  MatrixUse use = MatrixUse::kFeedForward;
  bool as_stored = false;                   // kernels read the codes as the file has them
  std::size_t nbytes = 0, scale_bytes = 0;  // of what is made, each a multiple of 64

  StreamedMatrix() = default;
  StreamedMatrix(std::string matrix_name, const WeightJob& job, MatrixUse matrix_use);
};

// A range of a file, at multiples of kDirectAlignment, and where it goes.
struct FileExtent {
  std::shared_ptr<const MappedFile> file;
  std::uint64_t begin = 0, end = 0;
  std::size_t at = 0;  // of the buffer
};

class StreamedExpert {
 public:
  StreamedExpert(StreamedMatrix gate, StreamedMatrix up, StreamedMatrix down, float limit);

  const std::vector<FileExtent>& extents() const { return extents_; }
  // Memory that holds the extents.
  std::size_t read_bytes() const { return read_bytes_; }
  // Whether weights lie in that memory, which then has to stay.
  bool in_place() const { return in_place_; }
  // Memory for what is made of them beside.
  std::size_t made_bytes() const { return made_bytes_; }
  // Memory of a slot: made_bytes(), and read_bytes() when they stay.
  std::size_t slot_bytes() const { return made_bytes_ + (in_place_ ? read_bytes_ : 0); }

  // Makes the weights from the extents in `read`, with what is made beside at `made`. Errors:
  // kCorrupt, naming the tensor.
  Result<GatedMlp> make(const QuantConfig& config, const LoadOptions& options,
                        const std::byte* read, std::byte* made) const;
  // Names the tensor that an extent's bytes from `offset` of its file are of.
  std::string tensor_at(const FileExtent& extent, std::uint64_t offset) const;

 private:
  const std::byte* place_of(const TensorRef& tensor, const std::byte* read) const;

  std::array<StreamedMatrix, 3> matrices_;  // gate, up, down
  float limit_;
  std::vector<FileExtent> extents_;
  std::size_t read_bytes_ = 0, made_bytes_ = 0;
  bool in_place_ = false;
};

}  // namespace glint
