#include "checkpoint/stored_matrix.h"

#include <fmt/format.h>

#include <array>

#include "base/check.h"
#include "checkpoint/stored_parts.h"
#include "tensor/ggml_blocks.h"

namespace glint {
namespace {

constexpr std::string_view kWeight = ".weight";

// One tensor of floats or of a GGUF file's blocks; all dimensions but the last are rows.
class PlainMatrix final : public StoredMatrix {
 public:
  static MatrixResult open(const TensorRef& tensor) {
    const bool block = is_block_type(tensor.dtype);
    if (!block && !is_float_type(tensor.dtype)) {
      return wrong_type(tensor,
                        "BF16, F16, F32, the block types of GGUF files, or a quantised "
                        "matrix with its scales beside it");
    }
    if (tensor.shape.empty()) return wrong_shape(tensor, "a matrix");
    std::unique_ptr<PlainMatrix> m(new PlainMatrix);
    m->tensor_ = &tensor;
    m->tensors_ = {&tensor};
    m->type_ = tensor.dtype;
    m->cols_ = static_cast<std::size_t>(tensor.shape.back());
    m->rows_ = m->cols_ == 0 ? 0 : count_of(tensor) / m->cols_;
    m->description_ = dtype_name(tensor.dtype);
    return MatrixResult(std::move(m));
  }

  std::span<const std::byte> row_bytes(std::size_t first, std::size_t count) const override {
    const std::size_t row = bytes_of_row();
    return tensor_->bytes.subspan(first * row, count * row);
  }

  void decode_rows(std::size_t first, std::size_t count, float* out) const override {
    const std::byte* from = tensor_->bytes.data() + first * bytes_of_row();
    const std::size_t n = count * cols_;
    if (n == 0) return;  // then there may be no bytes at all
    if (is_block_type(type_))
      return decode_blocks(type_, from, n / block_size(type_).elements, out);
    if (type_ == DType::kF32) {
      std::memcpy(out, from, n * sizeof(float));
      return;
    }
    for (std::size_t i = 0; i < n; ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
      out[i] = type_ == DType::kBf16 ? bf16{bits}.to_float() : f16_to_float(bits);
    }
  }

 private:
  std::size_t bytes_of_row() const {
    const BlockSize block = block_size(type_);
    return cols_ / block.elements * block.bytes;
  }
  const TensorRef* tensor_ = nullptr;
};

constexpr const MatrixFormat* kFormats[] = {
    &kFp8Format, &kFp4Format, &kPackedIntFormat, &kByteIntFormat, &kAwqFormat, &kGptqFormat,
};

// Suffixes of names; the role of what ends so.
struct Suffix {
  std::string_view text;
  TensorRole role;
};
constexpr Suffix kSuffixes[] = {
    {".weight_packed", TensorRole::kCodes},
    {".qweight", TensorRole::kCodes},
    {".weight_scale", TensorRole::kPart},
    {".weight_scale_inv", TensorRole::kPart},
    {".weight_scale_2", TensorRole::kPart},
    {".weight_global_scale", TensorRole::kPart},
    {".weight_zero_point", TensorRole::kPart},
    {".weight_shape", TensorRole::kPart},
    {".weight_g_idx", TensorRole::kPart},
    {".scales", TensorRole::kPart},
    {".qzeros", TensorRole::kPart},
    {".g_idx", TensorRole::kPart},
    {".input_scale", TensorRole::kUnread},
    {".input_global_scale", TensorRole::kUnread},
    {".input_zero_point", TensorRole::kUnread},
    {".output_scale", TensorRole::kUnread},
    {".output_zero_point", TensorRole::kUnread},
    {".q_scale", TensorRole::kUnread},
    {".k_scale", TensorRole::kUnread},
    {".v_scale", TensorRole::kUnread},
    {".kv_scale", TensorRole::kUnread},
    {".prob_scale", TensorRole::kUnread},
    {".k_zero_point", TensorRole::kUnread},
    {".v_zero_point", TensorRole::kUnread},
};

StoredParts parts_of(const Checkpoint& checkpoint, const QuantConfig& config,
                     std::string_view name) {
  return {checkpoint, config, std::string(name.substr(0, name.size() - kWeight.size() + 1))};
}

}  // namespace

std::uint64_t StoredMatrix::nbytes() const {
  std::uint64_t total = 0;
  for (const TensorRef* tensor : tensors_) total += tensor->bytes.size();
  return total;
}

std::span<const std::byte> StoredMatrix::row_bytes(std::size_t, std::size_t) const {
  return {};
}

void StoredMatrix::write_blocks(std::size_t, std::size_t, std::byte*) const {
  GLINT_CHECK(false);
}

void StoredMatrix::write_grid(float*) const {
  GLINT_CHECK(false);
}

Result<std::shared_ptr<const StoredMatrix>> find_matrix(const Checkpoint& checkpoint,
                                                        const QuantConfig& config,
                                                        std::string_view name) {
  const auto shared = [](MatrixResult made) -> Result<std::shared_ptr<const StoredMatrix>> {
    if (!made) return std::move(made).error();
    return std::shared_ptr<const StoredMatrix>(std::move(*made));
  };
  if (name.ends_with(kWeight)) {
    const StoredParts parts = parts_of(checkpoint, config, name);
    for (const MatrixFormat* format : kFormats) {
      if (format->is(parts)) return shared(format->open(parts));
    }
  }
  const TensorRef* tensor = checkpoint.find(name);
  if (tensor == nullptr) {
    return not_found(fmt::format("tensor {} is missing: {}", name, checkpoint.why_missing(name)));
  }
  return shared(PlainMatrix::open(*tensor));
}

bool stores_matrix(const Checkpoint& checkpoint, std::string_view name) {
  if (checkpoint.find(name) != nullptr) return true;
  if (!name.ends_with(kWeight)) return false;
  const QuantConfig none;
  const StoredParts parts = parts_of(checkpoint, none, name);
  return parts.find("weight_packed") != nullptr || parts.find("qweight") != nullptr;
}

TensorPlace place_of(std::string_view tensor) {
  for (const Suffix& suffix : kSuffixes) {
    if (!tensor.ends_with(suffix.text)) continue;
    if (suffix.role == TensorRole::kUnread) return {suffix.role, ""};
    std::string stem(tensor.substr(0, tensor.size() - suffix.text.size()));
    return {suffix.role, stem + std::string(kWeight)};
  }
  return {TensorRole::kWhole, std::string(tensor)};
}

}  // namespace glint
