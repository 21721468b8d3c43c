#include "checkpoint/stored_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "tensor/ggml_blocks.h"
#include "tensor/int_blocks.h"

namespace glint {

Result<const TensorRef*> StoredParts::need(std::string_view part, const TensorRef& codes) const {
  if (const TensorRef* tensor = find(part)) return tensor;
  const std::string name = stem + std::string(part);
  return corrupt(fmt::format("tensor {} is missing, without which {} ({}) cannot be read: {}", name,
                             codes.name, dtype_name(codes.dtype), checkpoint.why_missing(name)));
}

std::string tensor_and_file(const TensorRef& tensor) {
  return fmt::format("tensor {} in {}", tensor.name,
                     tensor.file == nullptr ? "?" : tensor.file->path().filename().string());
}

std::string shape_text(const TensorRef& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

Error wrong_shape(const TensorRef& tensor, std::string_view wanted) {
  return corrupt(fmt::format("{} has shape {} where it should be {}", tensor_and_file(tensor),
                             shape_text(tensor), wanted));
}

Error wrong_type(const TensorRef& tensor, std::string_view wanted) {
  return unsupported(fmt::format("{} is {}: this version reads {} there", tensor_and_file(tensor),
                                 dtype_name(tensor.dtype), wanted));
}

std::size_t count_of(const TensorRef& tensor) {
  std::size_t count = 1;
  for (const std::int64_t dim : tensor.shape) count *= static_cast<std::size_t>(dim);
  return count;
}

Result<Shape2> matrix_shape(const TensorRef& tensor) {
  if (tensor.shape.size() != 2 || tensor.shape[0] < 1 || tensor.shape[1] < 1)
    return wrong_shape(tensor, "a matrix");
  return Shape2{static_cast<std::size_t>(tensor.shape[0]),
                static_cast<std::size_t>(tensor.shape[1])};
}

std::uint32_t load_bits(const TensorRef& tensor, std::size_t index) {
  switch (dtype_bytes(tensor.dtype)) {
    case 1:
      return load<std::uint8_t>(tensor, index);
    case 2:
      return load<std::uint16_t>(tensor, index);
    default:
      return load<std::uint32_t>(tensor, index);
  }
}

float float_of_bits(DType type, std::uint32_t bits) {
  switch (type) {
    case DType::kF32:
      return std::bit_cast<float>(bits);
    case DType::kBf16:
      return bf16{static_cast<std::uint16_t>(bits)}.to_float();
    case DType::kF16:
      return f16_to_float(static_cast<std::uint16_t>(bits));
    case DType::kF8E4M3:
      return e4m3_to_float(static_cast<std::uint8_t>(bits));
    case DType::kU8:
      if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
      return std::ldexp(1.0f, static_cast<int>(bits) - 127);
    default:
      GLINT_CHECK(false);
  }
}

bool is_float_type(DType type) {
  return type == DType::kF32 || type == DType::kBf16 || type == DType::kF16;
}

Result<float> read_scalar(const TensorRef& tensor) {
  if (!is_float_type(tensor.dtype)) return wrong_type(tensor, "F32, BF16 and F16");
  if (count_of(tensor) != 1) return wrong_shape(tensor, "one number");
  const float value = float_of_bits(tensor.dtype, load_bits(tensor, 0));
  if (!std::isfinite(value) || value <= 0)
    return corrupt(fmt::format("{} is {}, no positive number", tensor_and_file(tensor), value));
  return value;
}

std::optional<std::size_t> group_columns(std::size_t cols, std::size_t groups,
                                         const std::vector<std::size_t>& declared) {
  if (groups == 0 || groups > cols) return std::nullopt;
  if (groups == 1) return cols;
  const auto fits = [&](std::size_t size) { return (cols + size - 1) / size == groups; };
  const bool even = cols % groups == 0;
  const bool even_declared = std::ranges::find(declared, cols / groups) != declared.end();
  if (even && (even_declared || declared.empty())) return cols / groups;
  for (const std::size_t size : declared) {
    if (fits(size)) return size;
  }
  if (even) return cols / groups;
  return std::nullopt;
}

std::string group_text(std::size_t group, std::size_t cols,
                       const std::vector<std::size_t>& declared) {
  const bool whole = group == cols && std::ranges::find(declared, cols) == declared.end();
  return whole ? "one group a row" : fmt::format("groups of {}", group);
}

// ---- groups

namespace {

std::uint8_t pair(std::uint8_t low, std::uint8_t high) {
  return static_cast<std::uint8_t>(low | high << 4);
}

void put16(std::uint8_t* at, std::uint32_t bits) {
  at[0] = static_cast<std::uint8_t>(bits);
  at[1] = static_cast<std::uint8_t>(bits >> 8);
}

// Blocks of integers as tensor/int_blocks.h has them.
void put_int_block(const IntBlockLayout& layout, const std::uint8_t* codes, std::uint32_t scale,
                   std::uint8_t zero, std::uint8_t* out) {
  put16(out, scale);
  if (layout.scale == DType::kF32) put16(out + 2, scale >> 16);
  if (layout.zero_at != 0) {
    std::memset(out + layout.zero_at, 0, layout.codes_at - layout.zero_at);
    out[layout.zero_at] = zero;
  }
  std::uint8_t* to = out + layout.codes_at;
  if (layout.code_bits == 8) {
    std::memcpy(to, codes, 32);
  } else {
    for (int i = 0; i < 16; ++i) to[i] = pair(codes[2 * i], codes[2 * i + 1]);
  }
}

}  // namespace

void GroupMatrix::zeros(std::size_t, std::uint8_t* out) const {
  std::fill_n(out, groups(), middle());
}

void GroupMatrix::choose_int_type() {
  const DType scale = scales_.tensor->dtype;
  const bool wide = code_bits_ == 8;
  if (!has_zeros_) {
    if (scale == DType::kF16) type_ = wide ? DType::kQ8_0 : DType::kQ4_0;
    if (scale == DType::kBf16) type_ = wide ? DType::kInt8B : DType::kInt4B;
    if (scale == DType::kF32) type_ = wide ? DType::kInt8F : DType::kInt4F;
  } else if (wide) {
    type_ = DType::kUint8F;
  } else {
    if (scale == DType::kF16) type_ = DType::kUint4H;
    if (scale == DType::kBf16) type_ = DType::kUint4B;
    if (scale == DType::kF32) type_ = DType::kUint4F;
  }
  fit_blocks();
}

void GroupMatrix::fit_blocks() {
  constexpr std::size_t kBlock = 32;
  const bool even = e2m1_ || group_ % kBlock == 0 || group_ >= cols_;
  has_blocks_ = even && cols_ % block_size(type_).elements == 0;
}

void GroupMatrix::decode_rows(std::size_t first, std::size_t count, float* out) const {
  std::vector<std::uint8_t> all(count * cols_), zero(groups());
  codes(first, count, all.data());
  for (std::size_t r = 0; r < count; ++r) {
    const std::uint8_t* code = all.data() + r * cols_;
    float* value = out + r * cols_;
    zeros(first + r, zero.data());
    for (std::size_t begin = 0, g = 0; begin < cols_; begin += group_, ++g) {
      const float scale = float_of_bits(scales_.tensor->dtype, scales_.bits(first + r, g));
      for (std::size_t c = begin; c < std::min(cols_, begin + group_); ++c) {
        const float whole = e2m1_ ? 0.5f * static_cast<float>(fp4_values()[code[c]])
                                  : static_cast<float>(code[c] - zero[g]);
        value[c] = scale * whole;
      }
    }
  }
}

void GroupMatrix::write_blocks(std::size_t first, std::size_t count, std::byte* out) const {
  GLINT_CHECK(has_blocks_);
  std::vector<std::uint8_t> all(count * cols_), zero(groups());
  codes(first, count, all.data());
  const BlockSize block = block_size(type_);
  auto* to = reinterpret_cast<std::uint8_t*>(out);
  for (std::size_t r = 0; r < count; ++r) {
    const std::uint8_t* code = all.data() + r * cols_;
    if (has_zeros_) zeros(first + r, zero.data());
    for (std::size_t c = 0; c < cols_;
         c += block.elements, code += block.elements, to += block.bytes) {
      const std::size_t group = c / group_;
      const std::uint32_t scale = scales_.bits(first + r, group);
      switch (type_) {
        case DType::kNVFP4:
          // Its scales have no sign, so that a negative one turns the codes.
          for (std::size_t g = 0; g < 4; ++g) {
            const std::uint32_t bits = scales_.bits(first + r, group + g);
            const auto sign = static_cast<std::uint8_t>(bits >> 4 & 8);
            to[g] = static_cast<std::uint8_t>(bits & 0x7f);
            for (std::size_t i = 0; i < 8; ++i)
              to[4 + 8 * g + i] = pair(code[16 * g + i] ^ sign, code[16 * g + 8 + i] ^ sign);
          }
          break;
        case DType::kMXFP4:
          to[0] = static_cast<std::uint8_t>(scale);
          for (std::size_t i = 0; i < 16; ++i) to[1 + i] = pair(code[i], code[16 + i]);
          break;
        case DType::kQ4_0:
          put16(to, scale);
          for (std::size_t i = 0; i < 16; ++i) to[2 + i] = pair(code[i], code[16 + i]);
          break;
        case DType::kQ8_0:
          put16(to, scale);
          for (std::size_t i = 0; i < 32; ++i) to[2 + i] = code[i] ^ 0x80;
          break;
        case DType::kUint8F:
          put_int_block(int_block_layout(type_), code,
                        std::bit_cast<std::uint32_t>(float_of_bits(scales_.tensor->dtype, scale)),
                        zero[group], to);
          break;
        default:
          put_int_block(int_block_layout(type_), code, scale, zero[group], to);
      }
    }
  }
}

}  // namespace glint
