#include "models/streamed_expert.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/direct_file.h"
#include "checkpoint/stored_matrix.h"

namespace glint {
namespace {

// Ranges that are no further apart are read at once: as many bytes take less time than a request.
constexpr std::uint64_t kMostBetween = 32 << 10;

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::uint64_t offset_of(const TensorRef& tensor) {
  return static_cast<std::uint64_t>(tensor.bytes.data() - tensor.file->bytes().data());
}

// In a buffer that starts a page, an element is aligned where it is in the file.
bool is_aligned(const WeightJob& job) {
  const std::size_t element = is_block_type(job.type) ? 1 : dtype_bytes(job.type);
  return offset_of(*job.source->tensors()[0]) % element == 0;
}

}  // namespace

StreamedMatrix::StreamedMatrix(std::string matrix_name, const WeightJob& job, MatrixUse matrix_use)
    : name(std::move(matrix_name)),
      tensors(job.source->tensors().begin(), job.source->tensors().end()),
      rows(job.rows),
      use(matrix_use),
      as_stored(job.work == WeightJob::Work::kCopy && is_aligned(job)),
      nbytes(round_up(job.nbytes(), 64)),
      scale_bytes(job.format == QuantFormat::kF8 ? round_up(scales_job(job).nbytes(), 64) : 0) {}

StreamedExpert::StreamedExpert(StreamedMatrix gate, StreamedMatrix up, StreamedMatrix down,
                               float limit)
    : matrices_{std::move(gate), std::move(up), std::move(down)}, limit_(limit) {
  in_place_ = std::ranges::all_of(matrices_, &StreamedMatrix::as_stored);
  for (const StreamedMatrix& matrix : matrices_) {
    made_bytes_ += matrix.scale_bytes + (in_place_ ? 0 : matrix.nbytes);
    for (const TensorRef* tensor : matrix.tensors) {
      const std::uint64_t begin = offset_of(*tensor), end = begin + tensor->bytes.size();
      extents_.push_back({tensor->file, begin / kDirectAlignment * kDirectAlignment,
                          round_up(end, kDirectAlignment)});
    }
  }
  // What is read in place lies behind it.
  if (in_place_) made_bytes_ = round_up(made_bytes_, kDirectAlignment);
  std::ranges::sort(extents_, [](const FileExtent& a, const FileExtent& b) {
    return std::pair(a.file.get(), a.begin) < std::pair(b.file.get(), b.begin);
  });
  std::vector<FileExtent> merged;
  for (const FileExtent& next : extents_) {
    if (!merged.empty() && merged.back().file == next.file &&
        next.begin <= merged.back().end + kMostBetween) {
      merged.back().end = std::max(merged.back().end, next.end);
    } else {
      merged.push_back(next);
    }
  }
  for (FileExtent& extent : merged) {
    extent.at = read_bytes_;
    read_bytes_ += static_cast<std::size_t>(extent.end - extent.begin);
  }
  extents_ = std::move(merged);
}

const std::byte* StreamedExpert::place_of(const TensorRef& tensor, const std::byte* read) const {
  const std::uint64_t offset = offset_of(tensor);
  for (const FileExtent& extent : extents_) {
    if (extent.file == tensor.file && offset >= extent.begin && offset < extent.end)
      return read + extent.at + (offset - extent.begin);
  }
  GLINT_CHECK(tensor.bytes.empty());
  return read;
}

Result<GatedMlp> StreamedExpert::make(const QuantConfig& config, const LoadOptions& options,
                                      const std::byte* read, std::byte* made) const {
  std::array<Weight, 3> weights;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const StreamedMatrix& matrix = matrices_[i];
    std::vector<TensorRef> tensors;
    for (const TensorRef* tensor : matrix.tensors) {
      tensors.push_back(*tensor);
      tensors.back().bytes = {place_of(*tensor, read), tensor->bytes.size()};
    }
    // Lives as long as its matrix, which is let go below.
    const auto checkpoint = Checkpoint::of_tensors(std::move(tensors));
    GLINT_TRY(const auto source, find_matrix(*checkpoint, config, matrix.name));
    WeightJob job = weight_job(source, 0, matrix.rows, matrix.use, false, options);
    const std::byte* data = nullptr;
    if (in_place_) {
      data = source->row_bytes(0, matrix.rows).data();
    } else {
      job.to = made;
      job.run(0, job.units(), options.kernels);
      data = std::exchange(made, made + matrix.nbytes);
    }
    const std::byte* scales = made;
    if (matrix.scale_bytes > 0) {
      WeightJob beside = scales_job(job);
      beside.to = made;
      beside.run(0, 1, options.kernels);
      made += matrix.scale_bytes;
    }
    weights[i] = made_weight(job, data, scales, nullptr);
  }
  return GatedMlp{std::move(weights[0]), std::move(weights[1]), std::move(weights[2]), limit_};
}

std::string StreamedExpert::tensor_at(const FileExtent& extent, std::uint64_t offset) const {
  const TensorRef* found = nullptr;
  for (const StreamedMatrix& matrix : matrices_) {
    for (const TensorRef* tensor : matrix.tensors) {
      if (tensor->file != extent.file || offset_of(*tensor) + tensor->bytes.size() <= offset)
        continue;
      if (found == nullptr || offset_of(*tensor) < offset_of(*found)) found = tensor;
    }
  }
  return found == nullptr ? matrices_[0].name : found->name;
}

}  // namespace glint
