// Integers as compressed-tensors writes them, with weight_scale [rows, groups], [rows, 1], [rows]
// or one number, of BF16, F16 or F32, and values scale * (code - zero):
//   pack-quantized  weight_packed I32 [rows, ceil(cols * bits / 32)], the first code in the low
//   bits;
//                   weight_shape [2]; zero points in weight_zero_point, I32 [ceil(rows * bits /
//                   32), groups] packed along rows, or I8 [rows, groups] less the middle; without
//                   them the zero is the middle
//   int-quantized   weight I8 [rows, cols], weight_zero_point I8
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/stored_parts.h"

namespace glint {
namespace {

class IntMatrix : public GroupMatrix {
 public:
  Status check_values() const override;

 protected:
  // Once rows, columns and codes are known.
  Status read_scales(const StoredParts& parts, const TensorRef& codes);
  Status read_zeros(const StoredParts& parts);
  void zeros(std::size_t row, std::uint8_t* out) const override;

  const TensorRef* zeros_ = nullptr;
  std::optional<bool> symmetric_;  // as the config says
};

Status IntMatrix::read_scales(const StoredParts& parts, const TensorRef& codes) {
  GLINT_TRY(const TensorRef* scales, parts.need("weight_scale", codes));
  if (!is_float_type(scales->dtype)) return wrong_type(*scales, "BF16, F16 and F32");
  tensors_ = {&codes, scales};
  const std::vector<std::int64_t>& shape = scales->shape;
  const auto wanted = [&] {
    return wrong_shape(
        *scales, fmt::format("[{}, groups], [{}, 1], [{}] or one number", rows_, rows_, rows_));
  };
  std::size_t groups = 1;
  if (count_of(*scales) == 1) {
    scales_ = {scales, 0, 1};
  } else {
    if (shape.empty() || shape.size() > 2 || shape[0] != static_cast<std::int64_t>(rows_))
      return wanted();
    groups = shape.size() == 2 ? static_cast<std::size_t>(std::max<std::int64_t>(shape[1], 0)) : 1;
    scales_ = {scales, groups, 1};
  }
  const auto group = group_columns(cols_, groups, parts.config.groups);
  if (!group) return wanted();
  group_ = *group;
  GLINT_TRY_VOID(read_zeros(parts));
  choose_int_type();
  description_ =
      fmt::format("INT{} ({}, {}, {} scales)", code_bits_, has_zeros_ ? "zero points" : "symmetric",
                  group_text(group_, cols_, parts.config.groups), dtype_name(scales->dtype));
  return {};
}

Status IntMatrix::read_zeros(const StoredParts& parts) {
  symmetric_ = parts.config.symmetric;
  zeros_ = parts.find("weight_zero_point");
  if (zeros_ == nullptr) {
    if (symmetric_ != false) return {};
    return corrupt(fmt::format(
        "tensor {}weight_zero_point is missing, though {} says that weights are not symmetric: {}",
        parts.stem, parts.config.where,
        parts.checkpoint.why_missing(parts.stem + "weight_zero_point")));
  }
  const bool packed = zeros_->dtype == DType::kI32;
  if (!packed && zeros_->dtype != DType::kI8) return wrong_type(*zeros_, "I32 and I8");
  const std::size_t per_word = packed ? 32 / static_cast<std::size_t>(code_bits_) : 1;
  const std::size_t scale_rows = scales_.row_stride == 0 ? 1 : rows_;
  const std::size_t zero_rows = (scale_rows + per_word - 1) / per_word;
  const std::vector<std::int64_t> wanted = {static_cast<std::int64_t>(zero_rows),
                                            static_cast<std::int64_t>(groups())};
  const bool flat = groups() == 1 && count_of(*zeros_) == zero_rows;
  if (zeros_->shape != wanted && !flat)
    return wrong_shape(*zeros_, fmt::format("[{}, {}]", wanted[0], wanted[1]));
  tensors_.push_back(zeros_);
  has_zeros_ = true;
  return {};
}

void IntMatrix::zeros(std::size_t row, std::uint8_t* out) const {
  if (zeros_ == nullptr) return GroupMatrix::zeros(row, out);
  if (scales_.row_stride == 0) row = 0;
  const std::size_t n = groups();
  const auto bits = static_cast<std::size_t>(code_bits_), per_word = 32 / bits;
  for (std::size_t g = 0; g < n; ++g) {
    if (zeros_->dtype == DType::kI8) {
      out[g] = static_cast<std::uint8_t>(load<std::uint8_t>(*zeros_, row * n + g) + middle());
    } else {
      const auto word = load<std::uint32_t>(*zeros_, row / per_word * n + g);
      out[g] = static_cast<std::uint8_t>(word >> (row % per_word * bits) & ((1u << bits) - 1));
    }
  }
}

// Zero points beside a config that says there are none: they must be the middle.
Status IntMatrix::check_values() const {
  if (!has_zeros_ || symmetric_ != true) return {};
  std::vector<std::uint8_t> zero(groups());
  for (std::size_t row = 0; row < rows_; ++row) {
    zeros(row, zero.data());
    if (std::ranges::all_of(zero, [&](std::uint8_t z) { return z == middle(); })) continue;
    return unsupported(
        fmt::format("{} shifts weights, which the config calls symmetric; one of them is wrong",
                    tensor_and_file(*zeros_)));
  }
  return {};
}

class PackedIntMatrix final : public IntMatrix {
 public:
  static MatrixResult open(const StoredParts& parts);

  std::span<const std::byte> row_bytes(std::size_t first, std::size_t count) const override {
    return tensors_[0]->bytes.subspan(first * row_words_ * 4, count * row_words_ * 4);
  }
  Status check_values() const override {
    if (order_ != nullptr) {
      for (std::size_t c = 0; c < cols_; ++c) {
        if (load_bits(*order_, c) == c / group_) continue;
        return unsupported(
            fmt::format("{} reorders columns (actorder by group), which is not supported",
                        tensor_and_file(*order_)));
      }
    }
    return IntMatrix::check_values();
  }

 protected:
  void codes(std::size_t first, std::size_t count, std::uint8_t* out) const override {
    for (std::size_t r = first; r < first + count; ++r, out += cols_) {
      const std::span<const std::byte> row = row_bytes(r, 1);
      for (std::size_t c = 0; c < cols_; ++c) {
        const auto byte = std::to_integer<std::uint8_t>(row[code_bits_ == 8 ? c : c / 2]);
        out[c] = code_bits_ == 8 ? byte : (byte >> (c % 2 * 4) & 15);
      }
    }
  }

 private:
  Status read_shape(const StoredParts& parts, const TensorRef& codes);
  std::size_t row_words_ = 0;
  const TensorRef* order_ = nullptr;  // the group of each column
};

MatrixResult PackedIntMatrix::open(const StoredParts& parts) {
  const TensorRef& codes = *parts.find("weight_packed");
  if (codes.dtype != DType::kI32) return wrong_type(codes, "I32 and U8");
  std::unique_ptr<PackedIntMatrix> m(new PackedIntMatrix);
  GLINT_TRY_VOID(m->read_shape(parts, codes));
  GLINT_TRY_VOID(m->read_scales(parts, codes));
  m->tensors_.push_back(parts.find("weight_shape"));
  m->order_ = parts.find("weight_g_idx");
  if (m->order_ != nullptr) {
    if (m->order_->dtype != DType::kI32) return wrong_type(*m->order_, "I32");
    if (count_of(*m->order_) != m->cols_)
      return wrong_shape(*m->order_, fmt::format("[{}]", m->cols_));
    m->tensors_.push_back(m->order_);
  }
  return MatrixResult(std::move(m));
}

Status PackedIntMatrix::read_shape(const StoredParts& parts, const TensorRef& codes) {
  GLINT_TRY(const Shape2 packed, matrix_shape(codes));
  GLINT_TRY(const TensorRef* shape, parts.need("weight_shape", codes));
  const bool wide = shape->dtype == DType::kI64;
  if (!wide && shape->dtype != DType::kI32) return wrong_type(*shape, "I64 and I32");
  if (count_of(*shape) != 2) return wrong_shape(*shape, "[2]");
  const auto at = [&](std::size_t i) {
    return wide ? load<std::int64_t>(*shape, i) : load<std::int32_t>(*shape, i);
  };
  const std::int64_t rows = at(0), cols = at(1);
  const auto words = static_cast<std::int64_t>(packed.cols);
  const bool is_4 = cols > 8 * (words - 1) && cols <= 8 * words;
  const bool is_8 = cols > 4 * (words - 1) && cols <= 4 * words;
  if (rows != codes.shape[0] || cols < 1 || (!is_4 && !is_8)) {
    return corrupt(fmt::format(
        "{} says [{}, {}], which {} {} does not hold in codes of 4 or 8 bits, the ones that this "
        "version reads",
        tensor_and_file(*shape), rows, cols, codes.name, shape_text(codes)));
  }
  rows_ = packed.rows;
  cols_ = static_cast<std::size_t>(cols);
  row_words_ = packed.cols;
  // Rows of a few columns may be either.
  code_bits_ = is_4 && is_8 ? parts.config.bits.value_or(4) : is_4 ? 4 : 8;
  return {};
}

class ByteIntMatrix final : public IntMatrix {
 public:
  static MatrixResult open(const StoredParts& parts) {
    const TensorRef& codes = *parts.find("weight");
    std::unique_ptr<ByteIntMatrix> m(new ByteIntMatrix);
    GLINT_TRY(const Shape2 shape, matrix_shape(codes));
    m->code_bits_ = 8;
    m->rows_ = shape.rows;
    m->cols_ = shape.cols;
    GLINT_TRY_VOID(m->read_scales(parts, codes));
    return MatrixResult(std::move(m));
  }

  std::span<const std::byte> row_bytes(std::size_t first, std::size_t count) const override {
    return tensors_[0]->bytes.subspan(first * cols_, count * cols_);
  }

 protected:
  void codes(std::size_t first, std::size_t count, std::uint8_t* out) const override {
    for (const std::byte code : row_bytes(first, count))
      *out++ = std::to_integer<std::uint8_t>(code ^ std::byte{0x80});
  }
};

bool is_packed_int(const StoredParts& parts) {
  return parts.find("weight_packed") != nullptr;
}

bool is_byte_int(const StoredParts& parts) {
  const TensorRef* codes = parts.find("weight");
  return codes != nullptr && codes->dtype == DType::kI8;
}

}  // namespace

constinit const MatrixFormat kPackedIntFormat = {is_packed_int, PackedIntMatrix::open};
constinit const MatrixFormat kByteIntFormat = {is_byte_int, ByteIntMatrix::open};

}  // namespace glint
