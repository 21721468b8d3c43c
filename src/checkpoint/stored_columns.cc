// AWQ and GPTQ: the matrix turned, so that a row of the file is of one input and all outputs, with
// scales [groups, rows] and qzeros [groups, rows * bits / 32] for groups of inputs.
//   AWQ   qweight I32 [cols, rows / 8]: eight outputs to a word, in the order 0 2 4 6 1 3 5 7 from
//         the low nibble on; qzeros likewise
//   GPTQ  qweight I32 [cols * bits / 32, rows]: neighbouring inputs in a word; qzeros of
//   neighbouring
//         outputs, less one in the first version of the format; g_idx, the group of each input
#include <fmt/format.h>

#include <array>

#include "checkpoint/stored_parts.h"

namespace glint {
namespace {

class ColumnMatrix : public GroupMatrix {
 public:
  Status check_values() const override;

 protected:
  Status read_scales(const StoredParts& parts, const TensorRef& codes, std::string_view scheme);
  std::uint32_t code(std::uint32_t word, std::size_t place) const {
    const auto bits = static_cast<std::size_t>(code_bits_);
    return word >> (place * bits) & ((1u << bits) - 1);
  }
  std::size_t per_word() const { return 32 / static_cast<std::size_t>(code_bits_); }
  std::size_t zero_words() const { return rows_ / per_word(); }

  const TensorRef* zeros_ = nullptr;
  const TensorRef* order_ = nullptr;
};

Status ColumnMatrix::read_scales(const StoredParts& parts, const TensorRef& codes,
                                 std::string_view scheme) {
  GLINT_TRY(const TensorRef* scales, parts.need("scales", codes));
  GLINT_TRY(zeros_, parts.need("qzeros", codes));
  if (!is_float_type(scales->dtype)) return wrong_type(*scales, "F16, BF16 and F32");
  if (zeros_->dtype != DType::kI32) return wrong_type(*zeros_, "I32");
  GLINT_TRY(const Shape2 shape, matrix_shape(*scales));
  const auto group = group_columns(cols_, shape.rows, parts.config.groups);
  if (shape.cols != rows_ || !group)
    return wrong_shape(*scales, fmt::format("[groups of the {} inputs, {}]", cols_, rows_));
  const std::vector<std::int64_t> wanted = {scales->shape[0],
                                            static_cast<std::int64_t>(zero_words())};
  if (rows_ % per_word() != 0 || zeros_->shape != wanted)
    return wrong_shape(*zeros_, fmt::format("[{}, {} / {}]", shape.rows, rows_, per_word()));
  group_ = *group;
  scales_ = {scales, 1, rows_};
  has_zeros_ = true;
  tensors_ = {&codes, scales, zeros_};
  order_ = parts.find("g_idx");
  if (order_ != nullptr) {
    if (order_->dtype != DType::kI32) return wrong_type(*order_, "I32");
    if (count_of(*order_) != cols_) return wrong_shape(*order_, fmt::format("[{}]", cols_));
    tensors_.push_back(order_);
  }
  choose_int_type();
  description_ =
      fmt::format("INT{} ({}, zero points, {}, {} scales)", code_bits_, scheme,
                  group_text(group_, cols_, parts.config.groups), dtype_name(scales->dtype));
  return {};
}

Status ColumnMatrix::check_values() const {
  if (order_ == nullptr) return {};
  for (std::size_t c = 0; c < cols_; ++c) {
    if (load_bits(*order_, c) == c / group_) continue;
    return unsupported(fmt::format("{} reorders the inputs (desc_act), which is not supported",
                                   tensor_and_file(*order_)));
  }
  return {};
}

class AwqMatrix final : public ColumnMatrix {
 public:
  static MatrixResult open(const StoredParts& parts);

 protected:
  void codes(std::size_t first, std::size_t count, std::uint8_t* out) const override {
    const std::size_t words = rows_ / 8;
    for (std::size_t c = 0; c < cols_; ++c) {
      for (std::size_t r = 0; r < count; ++r) {
        const std::size_t row = first + r;
        const auto word = load<std::uint32_t>(*tensors_[0], c * words + row / 8);
        out[r * cols_ + c] = static_cast<std::uint8_t>(code(word, kPlace[row % 8]));
      }
    }
  }
  void zeros(std::size_t row, std::uint8_t* out) const override {
    for (std::size_t g = 0; g < groups(); ++g) {
      const auto word = load<std::uint32_t>(*zeros_, g * zero_words() + row / 8);
      out[g] = static_cast<std::uint8_t>(code(word, kPlace[row % 8]));
    }
  }

 private:
  // The nibble of each of eight outputs.
  static constexpr std::array<std::size_t, 8> kPlace = {0, 4, 1, 5, 2, 6, 3, 7};
};

Error contradicts(const StoredParts& parts, const TensorRef& codes, std::string_view scheme) {
  const QuantConfig& config = parts.config;
  return unsupported(fmt::format(
      "{} has the shape {} of {}, but {}", tensor_and_file(codes), shape_text(codes), scheme,
      config.method.empty() ? std::string("config.json has no quantization_config that says so")
                            : fmt::format("{} says {}", config.where, config.method)));
}

MatrixResult AwqMatrix::open(const StoredParts& parts) {
  const TensorRef& codes = *parts.find("qweight");
  if (codes.dtype != DType::kI32) return wrong_type(codes, "I32");
  if (parts.config.method != "awq") return contradicts(parts, codes, "AWQ");
  GLINT_TRY(const Shape2 shape, matrix_shape(codes));
  std::unique_ptr<AwqMatrix> m(new AwqMatrix);
  m->rows_ = 8 * shape.cols;
  m->cols_ = shape.rows;
  GLINT_TRY_VOID(m->read_scales(parts, codes, "AWQ"));
  return MatrixResult(std::move(m));
}

class GptqMatrix final : public ColumnMatrix {
 public:
  static MatrixResult open(const StoredParts& parts);

 protected:
  void codes(std::size_t first, std::size_t count, std::uint8_t* out) const override {
    for (std::size_t word = 0, c = 0; c < cols_; ++word) {
      for (std::size_t r = 0; r < count; ++r) {
        const auto bits = load<std::uint32_t>(*tensors_[0], word * rows_ + first + r);
        for (std::size_t i = 0; i < per_word(); ++i)
          out[r * cols_ + c + i] = static_cast<std::uint8_t>(code(bits, i));
      }
      c += per_word();
    }
  }
  void zeros(std::size_t row, std::uint8_t* out) const override {
    const std::uint32_t mask = (1u << code_bits_) - 1;
    for (std::size_t g = 0; g < groups(); ++g) {
      const auto word = load<std::uint32_t>(*zeros_, g * zero_words() + row / per_word());
      out[g] = static_cast<std::uint8_t>((code(word, row % per_word()) + added_) & mask);
    }
  }

 private:
  std::uint32_t added_ = 0;  // to zero points as stored
};

MatrixResult GptqMatrix::open(const StoredParts& parts) {
  const TensorRef& codes = *parts.find("qweight");
  if (codes.dtype != DType::kI32) return wrong_type(codes, "I32");
  if (parts.config.method != "gptq") return contradicts(parts, codes, "GPTQ");
  GLINT_TRY(const Shape2 shape, matrix_shape(codes));
  std::unique_ptr<GptqMatrix> m(new GptqMatrix);
  m->rows_ = shape.cols;
  m->added_ = parts.config.gptq_zeros_less_one ? 1 : 0;
  m->code_bits_ = parts.config.bits.value_or(4);
  // Modules may have other bits than the rest; their order has one entry for each input.
  const TensorRef* order = parts.find("g_idx");
  if (order != nullptr && count_of(*order) == 4 * shape.rows) m->code_bits_ = 8;
  if (order != nullptr && count_of(*order) == 8 * shape.rows) m->code_bits_ = 4;
  m->cols_ = m->per_word() * shape.rows;
  GLINT_TRY_VOID(m->read_scales(parts, codes, "GPTQ"));
  return MatrixResult(std::move(m));
}

// AWQ packs outputs, so that it has fewer words than scales in a row.
bool is_awq(const StoredParts& parts) {
  const TensorRef* codes = parts.find("qweight");
  const TensorRef* scales = parts.find("scales");
  return codes != nullptr && codes->shape.size() == 2 && scales != nullptr &&
         scales->shape.size() == 2 && scales->shape[1] != codes->shape[1];
}

bool is_gptq(const StoredParts& parts) {
  return parts.find("qweight") != nullptr;
}

}  // namespace

constinit const MatrixFormat kAwqFormat = {is_awq, AwqMatrix::open};
constinit const MatrixFormat kGptqFormat = {is_gptq, GptqMatrix::open};

}  // namespace glint
