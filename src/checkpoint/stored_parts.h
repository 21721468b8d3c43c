// What the files of the formats share (checkpoint/stored_matrix.h): the tensors beside each other
// under one name, checks of their shapes, and codes with scales for groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quant_config.h"
#include "checkpoint/stored_matrix.h"

namespace glint {

using MatrixResult = Result<std::unique_ptr<StoredMatrix>>;

// The tensors of one module, "model.layers.0.self_attn.q_proj".
struct StoredParts {
  const Checkpoint& checkpoint;
  const QuantConfig& config;
  std::string stem;  // with the dot behind it; what is added names a tensor

  const TensorRef* find(std::string_view part) const {
    return checkpoint.find(stem + std::string(part));
  }
  // kCorrupt where it is missing, saying why and for which tensor.
  Result<const TensorRef*> need(std::string_view part, const TensorRef& codes) const;
};

// "tensor NAME in FILE", for messages.
std::string tensor_and_file(const TensorRef& tensor);
// "[2, 3]".
std::string shape_text(const TensorRef& tensor);
Error wrong_shape(const TensorRef& tensor, std::string_view wanted);
Error wrong_type(const TensorRef& tensor, std::string_view wanted);

std::size_t count_of(const TensorRef& tensor);  // its elements
// Dimensions of a matrix of at least one element. kCorrupt otherwise.
struct Shape2 {
  std::size_t rows = 0, cols = 0;
};
Result<Shape2> matrix_shape(const TensorRef& tensor);

// Element `index` of any tensor of integers or floats; bytes need not be aligned.
template <typename T>
T load(const TensorRef& tensor, std::size_t index) {
  GLINT_DCHECK(index < tensor.bytes.size() / sizeof(T));
  T value;
  std::memcpy(&value, tensor.bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}
// Bits of an element of one, two or four bytes.
std::uint32_t load_bits(const TensorRef& tensor, std::size_t index);
// What they stand for: kF32, kBf16, kF16, kF8E4M3, or kU8 as a power of two with bias 127.
float float_of_bits(DType type, std::uint32_t bits);
bool is_float_type(DType type);  // kF32, kBf16, kF16

// A scale for the whole matrix: a positive float.
Result<float> read_scalar(const TensorRef& tensor);

// The columns that share one of `groups` scales in rows of `cols`: a size that the config declares
// where it fits, else an even share. nullopt: none fits.
std::optional<std::size_t> group_columns(std::size_t cols, std::size_t groups,
                                         const std::vector<std::size_t>& declared);

// Scales [rows or 1, groups], or with rows and groups exchanged.
struct ScaleTable {
  const TensorRef* tensor = nullptr;
  std::size_t row_stride = 0, group_stride = 1;

  std::uint32_t bits(std::size_t row, std::size_t group) const {
    return load_bits(*tensor, row * row_stride + group * group_stride);
  }
};

// Codes with scales for groups of columns; a format says where its codes and zeros are. The value
// of a code is scale * (code - zero), or scale * e2m1[code].
class GroupMatrix : public StoredMatrix {
 public:
  void decode_rows(std::size_t first, std::size_t count, float* out) const override;
  void write_blocks(std::size_t first, std::size_t count, std::byte* out) const override;

 protected:
  GroupMatrix() { kind_ = Kind::kGroups; }
  // Codes of rows [first, first + count), a byte each.
  virtual void codes(std::size_t first, std::size_t count, std::uint8_t* out) const = 0;
  // Zero points of a row, a byte for each group. The default: the middle of the codes.
  virtual void zeros(std::size_t row, std::uint8_t* out) const;

  std::size_t groups() const { return (cols_ + group_ - 1) / group_; }
  std::uint8_t middle() const { return static_cast<std::uint8_t>(1 << (code_bits_ - 1)); }
  // Picks the block type of integer codes once all the rest is known.
  void choose_int_type();
  // Whether blocks fit, once the type is known.
  void fit_blocks();

  int code_bits_ = 4;
  bool e2m1_ = false;
  bool has_zeros_ = false;
  std::size_t group_ = 0;  // columns that share a scale
  ScaleTable scales_;
};

// "groups of 128", or "one group a row" where the config declares none of that size.
std::string group_text(std::size_t group, std::size_t cols,
                       const std::vector<std::size_t>& declared);

// One family of formats.
struct MatrixFormat {
  // Whether the tensors are of this family, rightly or not.
  bool (*is)(const StoredParts& parts);
  MatrixResult (*open)(const StoredParts& parts);
};
extern const MatrixFormat kFp8Format, kFp4Format, kPackedIntFormat, kByteIntFormat, kAwqFormat,
    kGptqFormat;

}  // namespace glint
