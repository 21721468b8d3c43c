// FP4: e2m1 codes, two to a byte, the even column in the low nibble, [rows, cols / 2] of U8.
//   NVFP4, ModelOpt            weight, weight_scale F8_E4M3 [rows, cols / 16], weight_scale_2
//   NVFP4, compressed-tensors  weight_packed, weight_scale, weight_global_scale: divided by
//   MXFP4                      weight or weight_packed, weight_scale U8 [rows, cols / 32]: 2^(s -
//   127)
#include <fmt/format.h>

#include "checkpoint/stored_parts.h"

namespace glint {
namespace {

class Fp4Matrix final : public GroupMatrix {
 public:
  static MatrixResult open(const StoredParts& parts);

  std::span<const std::byte> row_bytes(std::size_t first, std::size_t count) const override {
    return tensors_[0]->bytes.subspan(first * cols_ / 2, count * cols_ / 2);
  }

 protected:
  void codes(std::size_t first, std::size_t count, std::uint8_t* out) const override {
    for (const std::byte pair : row_bytes(first, count)) {
      *out++ = std::to_integer<std::uint8_t>(pair & std::byte{15});
      *out++ = std::to_integer<std::uint8_t>(pair >> 4);
    }
  }

 private:
  Status read_global(const StoredParts& parts);
};

const TensorRef* codes_of(const StoredParts& parts) {
  for (const char* name : {"weight", "weight_packed"}) {
    const TensorRef* codes = parts.find(name);
    if (codes != nullptr && codes->dtype == DType::kU8) return codes;
  }
  return nullptr;
}

MatrixResult Fp4Matrix::open(const StoredParts& parts) {
  const TensorRef& codes = *codes_of(parts);
  GLINT_TRY(const Shape2 shape, matrix_shape(codes));
  GLINT_TRY(const TensorRef* scales, parts.need("weight_scale", codes));
  const bool nv = scales->dtype == DType::kF8E4M3;
  if (!nv && scales->dtype != DType::kU8)
    return wrong_type(*scales, "F8_E4M3 (NVFP4) and U8 exponents (MXFP4)");
  std::unique_ptr<Fp4Matrix> m(new Fp4Matrix);
  m->e2m1_ = true;
  m->rows_ = shape.rows;
  m->cols_ = 2 * shape.cols;
  m->group_ = nv ? 16 : 32;
  const std::size_t groups = m->cols_ / m->group_;
  const std::vector<std::int64_t> wanted = {codes.shape[0], static_cast<std::int64_t>(groups)};
  if (m->cols_ % m->group_ != 0 || scales->shape != wanted) {
    return wrong_shape(
        *scales, fmt::format("[{}, {} / {}], a scale for {} columns of {} {}", shape.rows, m->cols_,
                             m->group_, m->group_, codes.name, shape_text(codes)));
  }
  m->scales_ = {scales, groups, 1};
  m->tensors_ = {&codes, scales};
  m->type_ = nv ? DType::kNVFP4 : DType::kMXFP4;
  m->fit_blocks();
  if (nv) GLINT_TRY_VOID(m->read_global(parts));
  m->description_ = nv ? "NVFP4 (e2m1, groups of 16, e4m3 scales, global scale)"
                       : "MXFP4 (e2m1, groups of 32, e8m0 scales)";
  return MatrixResult(std::move(m));
}

Status Fp4Matrix::read_global(const StoredParts& parts) {
  const TensorRef* multiplied = parts.find("weight_scale_2");
  const TensorRef* divided = parts.find("weight_global_scale");
  if (multiplied != nullptr && divided != nullptr) {
    return corrupt(fmt::format("{} has two global scales, {} and {}: which one counts?",
                               tensor_and_file(*tensors_[0]), multiplied->name, divided->name));
  }
  if (divided == nullptr) {
    GLINT_TRY(multiplied, parts.need("weight_scale_2", *tensors_[0]));
    GLINT_TRY(factor_, read_scalar(*multiplied));
    tensors_.push_back(multiplied);
    return {};
  }
  GLINT_TRY(const float global, read_scalar(*divided));
  factor_ = 1.0f / global;
  tensors_.push_back(divided);
  return {};
}

bool is_fp4(const StoredParts& parts) {
  return codes_of(parts) != nullptr;
}

}  // namespace

constinit const MatrixFormat kFp4Format = {is_fp4, Fp4Matrix::open};

}  // namespace glint
