// A matrix of a checkpoint as the tools that quantise write it: one tensor of floats or GGUF
// blocks, or codes, scales and zero points in several tensors. decode_rows() times factor() is the
// definition of each format. Which format it is follows from the tensors; the config settles what
// they leave open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quant_config.h"
#include "tensor/dtype.h"

namespace glint {

// Borrows the checkpoint, whose files stay mapped.
class StoredMatrix {
 public:
  enum class Kind {
    kPlain,  // rows of one tensor: floats, or blocks of a GGUF file
    kF8,     // rows of e4m3 with a grid of scales
    kGroups  // codes of 4 or 8 bits with a scale for each group of a row
  };

  virtual ~StoredMatrix() = default;
  StoredMatrix(const StoredMatrix&) = delete;
  StoredMatrix& operator=(const StoredMatrix&) = delete;

  Kind kind() const { return kind_; }
  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }
  // kPlain: of the tensor; kF8: kF8E4M3; kGroups: the block type that holds the values as they are.
  DType type() const { return type_; }
  // Whether write_blocks() may be called: blocks of that type cut rows and groups evenly.
  bool has_blocks() const { return has_blocks_; }
  // "FP8 (e4m3, blocks of 128 x 128, F32 scales)"; the first word is the scheme. "BF16" of kPlain.
  const std::string& description() const { return description_; }
  std::string scheme() const { return description_.substr(0, description_.find(' ')); }
  // What every value is to be multiplied by, which decode_rows() and blocks leave to the reader.
  float factor() const { return factor_; }
  // All that it is made of, the codes first.
  std::span<const TensorRef* const> tensors() const { return tensors_; }
  std::uint64_t nbytes() const;  // of the tensors

  // The bytes of rows [first, first + count) of the first tensor; empty where rows do not lie one
  // after another.
  virtual std::span<const std::byte> row_bytes(std::size_t first, std::size_t count) const;
  // Rows [first, first + count) as float32, out[count * cols].
  virtual void decode_rows(std::size_t first, std::size_t count, float* out) const = 0;
  // kGroups: the same rows as blocks of type(), one row after another.
  virtual void write_blocks(std::size_t first, std::size_t count, std::byte* out) const;
  // kF8: scale (i, j) is that of rows [i * block_rows, ...) and columns [j * block_cols, ...).
  struct Grid {
    std::size_t rows = 0, cols = 0;  // of the scales
    std::size_t block_rows = 0, block_cols = 0;
  };
  virtual Grid grid() const { return {}; }
  virtual void write_grid(float* out) const;  // out[grid.rows * grid.cols]
  // Reads what shapes cannot tell: whether the columns are in order, whether zero points are what
  // the config says. kUnsupported, naming the tensor.
  virtual Status check_values() const { return {}; }

 protected:
  StoredMatrix() = default;

  Kind kind_ = Kind::kPlain;
  std::size_t rows_ = 0, cols_ = 0;
  DType type_ = DType::kF32;
  bool has_blocks_ = false;
  float factor_ = 1.0f;
  std::string description_;
  std::vector<const TensorRef*> tensors_;
};

// The matrix that models call `name` ("....weight"). kNotFound: no tensor stores it; kCorrupt and
// kUnsupported name the tensor that is missing, misshapen or of a type that is not read.
Result<std::shared_ptr<const StoredMatrix>> find_matrix(const Checkpoint& checkpoint,
                                                        const QuantConfig& config,
                                                        std::string_view name);
// Whether any tensor stores `name`, rightly or not.
bool stores_matrix(const Checkpoint& checkpoint, std::string_view name);

// What a tensor's name says of it.
enum class TensorRole {
  kWhole,  // a matrix or a vector of that name
  kCodes,  // the codes of a matrix of another name
  kPart,   // scales and the like of a matrix
  kUnread  // of activations and caches that are not quantised here
};
struct TensorPlace {
  TensorRole role = TensorRole::kWhole;
  std::string matrix;  // of kWhole, kCodes and kPart
};
TensorPlace place_of(std::string_view tensor);

}  // namespace glint
