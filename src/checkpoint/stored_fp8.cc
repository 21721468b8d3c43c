// FP8: e4m3 codes in NAME.weight, [rows, cols], times scales:
//   weight_scale_inv  [ceil(rows / b), ceil(cols / c)], a scale for each b x c block (DeepSeek,
//   GLM);
//                     to be multiplied with, despite its name
//   weight_scale      the same grid (Quark, ModelOpt, compressed-tensors' block strategy), or
//   [rows]
//                     or [rows, 1], a scale a row, or one number
// Scales are F32, BF16, F16 or powers of two in a byte (U8).
#include <fmt/format.h>

#include <bit>

#include "checkpoint/stored_parts.h"

namespace glint {
namespace {

bool grows_to(std::size_t size, std::size_t block, std::size_t blocks) {
  return block >= 1 && (size + block - 1) / block == blocks;
}

// The block that cuts `size` into `blocks`: as declared, a power of two, or an even share.
std::optional<std::size_t> block_of(std::size_t size, std::size_t blocks) {
  if (blocks == 0 || blocks > size) return std::nullopt;
  if (blocks == 1) return size;
  if (grows_to(size, 128, blocks)) return 128;
  if (size % blocks == 0) return size / blocks;
  const std::size_t power = std::bit_ceil((size + blocks - 1) / blocks);
  if (grows_to(size, power, blocks)) return power;
  return std::nullopt;
}

class Fp8Matrix final : public StoredMatrix {
 public:
  static MatrixResult open(const StoredParts& parts);

  std::span<const std::byte> row_bytes(std::size_t first, std::size_t count) const override {
    return codes().bytes.subspan(first * cols_, count * cols_);
  }

  void decode_rows(std::size_t first, std::size_t count, float* out) const override {
    for (std::size_t r = first; r < first + count; ++r) {
      for (std::size_t c = 0; c < cols_; ++c)
        *out++ = e4m3_to_float(load<std::uint8_t>(codes(), r * cols_ + c)) *
                 scale(r / grid_.block_rows * grid_.cols + c / grid_.block_cols);
    }
  }

  Grid grid() const override { return grid_; }

  void write_grid(float* out) const override {
    for (std::size_t i = 0; i < grid_.rows * grid_.cols; ++i) out[i] = scale(i);
  }

 private:
  const TensorRef& codes() const { return *tensors_[0]; }
  const TensorRef& scales() const { return *tensors_[1]; }
  float scale(std::size_t i) const { return float_of_bits(scales().dtype, load_bits(scales(), i)); }
  bool set_grid(const QuantConfig& config);
  std::string scale_text() const;

  Grid grid_;
};

MatrixResult Fp8Matrix::open(const StoredParts& parts) {
  const TensorRef& codes = *parts.find("weight");
  if (codes.dtype == DType::kF8E5M2) return wrong_type(codes, "F8_E4M3");
  GLINT_TRY(const Shape2 shape, matrix_shape(codes));
  const TensorRef* inverse = parts.find("weight_scale_inv");
  const TensorRef* scales = parts.find("weight_scale");
  if (inverse != nullptr && scales != nullptr) {
    return corrupt(fmt::format("{} has two scales, {} and {}: which one counts?",
                               tensor_and_file(codes), inverse->name, scales->name));
  }
  if (inverse == nullptr && scales == nullptr) {
    return corrupt(fmt::format(
        "tensor {}weight_scale_inv (or {}weight_scale) is missing, without which {} (F8_E4M3) "
        "cannot be read: {}",
        parts.stem, parts.stem, codes.name,
        parts.checkpoint.why_missing(parts.stem + "weight_scale_inv")));
  }
  if (scales == nullptr) scales = inverse;
  if (!is_float_type(scales->dtype) && scales->dtype != DType::kU8)
    return wrong_type(*scales, "F32, BF16, F16 and U8 (exponents)");
  std::unique_ptr<Fp8Matrix> m(new Fp8Matrix);
  m->kind_ = Kind::kF8;
  m->type_ = DType::kF8E4M3;
  m->rows_ = shape.rows;
  m->cols_ = shape.cols;
  m->tensors_ = {&codes, scales};
  if (!m->set_grid(parts.config)) {
    return wrong_shape(*scales,
                       fmt::format("one number, a scale for each row, or a grid of blocks over {}",
                                   shape_text(codes)));
  }
  m->description_ = fmt::format("FP8 (e4m3, {}, {} scales)", m->scale_text(),
                                scales->dtype == DType::kU8 ? "e8m0" : dtype_name(scales->dtype));
  return MatrixResult(std::move(m));
}

bool Fp8Matrix::set_grid(const QuantConfig& config) {
  const TensorRef& s = scales();
  if (count_of(s) == 1) {
    grid_ = {1, 1, rows_, cols_};
    return true;
  }
  if (s.shape.size() == 1) {
    grid_ = {rows_, 1, 1, cols_};
    return count_of(s) == rows_;
  }
  // ModelOpt writes [blocks, 1, blocks, 1].
  const bool apart = s.shape.size() == 4 && s.shape[1] == 1 && s.shape[3] == 1;
  if (!apart && s.shape.size() != 2) return false;
  const std::int64_t blocks_across = s.shape[apart ? 2 : 1];
  if (s.shape[0] < 1 || blocks_across < 1) return false;
  grid_.rows = static_cast<std::size_t>(s.shape[0]);
  grid_.cols = static_cast<std::size_t>(blocks_across);
  for (const auto& [block_rows, block_cols] : config.f8_blocks) {
    if (!grows_to(rows_, block_rows, grid_.rows) || !grows_to(cols_, block_cols, grid_.cols))
      continue;
    grid_.block_rows = block_rows;
    grid_.block_cols = block_cols;
    return true;
  }
  const auto block_rows = block_of(rows_, grid_.rows), block_cols = block_of(cols_, grid_.cols);
  grid_.block_rows = block_rows.value_or(0);
  grid_.block_cols = block_cols.value_or(0);
  return block_rows && block_cols;
}

std::string Fp8Matrix::scale_text() const {
  if (grid_.rows == 1 && grid_.cols == 1) return "one scale a matrix";
  if (grid_.block_rows == 1 && grid_.cols == 1) return "one scale a row";
  return fmt::format("blocks of {} x {}", grid_.block_rows, grid_.block_cols);
}

bool is_fp8(const StoredParts& parts) {
  const TensorRef* codes = parts.find("weight");
  return codes != nullptr && (codes->dtype == DType::kF8E4M3 || codes->dtype == DType::kF8E5M2);
}

}  // namespace

constinit const MatrixFormat kFp8Format = {is_fp8, Fp8Matrix::open};

}  // namespace glint
