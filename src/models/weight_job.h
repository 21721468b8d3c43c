// A matrix of a checkpoint on its way to memory: what is done to its rows so that kernels read
// them. Where the rows come from, and where they go, is decided by who runs the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "checkpoint/stored_matrix.h"
#include "models/model.h"
#include "models/packed_cache.h"
#include "models/weight_form.h"
#include "tensor/weight.h"

namespace glint {

// Rows [first, first + rows) of a matrix.
struct WeightJob {
  enum class Work {
    kCopy,    // rows as they lie in the file
    kBlocks,  // rows of blocks, put together
    kPack,    // panels of them, of the file's blocks, or of blocks that floats are encoded to
    kExpand,  // bf16 or float32
    kScales   // the grid of an FP8 matrix
  };
  std::shared_ptr<const StoredMatrix> source;
  std::size_t first = 0, rows = 0;
  Work work = Work::kCopy;
  QuantFormat format = QuantFormat::kF32;  // of the destination
  DType type = DType::kF32;
  std::byte* to = nullptr;
  std::size_t chunk = 0, chunk_offset = 0;  // where that is

  std::size_t cols() const { return source->cols(); }
  // Rows that belong together in the destination.
  std::size_t unit_rows() const;
  std::size_t unit_bytes() const;
  // Scales are written at once: they are few.
  std::size_t units() const;
  std::size_t nbytes() const;  // of the destination

  // Bytes of the file that units before `unit` stand for.
  std::uint64_t source_bytes(std::size_t unit) const;
  std::uint64_t source_bytes() const { return source_bytes(units()); }
  // Of what decides the bytes that run() writes, and where; the source is sampled.
  PackedKey key() const;
  // Writes units [begin, end); `table` may be null.
  void run(std::size_t begin, std::size_t end, const KernelTable* table) const;
  // Lets go of the file's pages of these units: otherwise they and the copy would both count as
  // ours.
  void release(std::size_t begin, std::size_t end) const;

 private:
  void pack(std::size_t begin, std::size_t end, const KernelTable* table) const;
  const std::byte* rows_of_blocks(std::size_t row, std::size_t count,
                                  std::vector<std::byte>& blocks) const;
};

// What rows [first, first + rows) of `source` become. `expand`: quantised ones become floats.
WeightJob weight_job(std::shared_ptr<const StoredMatrix> source, std::size_t first,
                     std::size_t rows, MatrixUse use, bool expand, const LoadOptions& options);
// The job that writes the scales beside it; only of kF8.
WeightJob scales_job(const WeightJob& job);
// What the job made at `data`, and for kF8 the other at `scales`.
Weight made_weight(const WeightJob& job, const std::byte* data, const std::byte* scales,
                   std::shared_ptr<const void> owner);

}  // namespace glint
