// Float matrices in every quantised form that src/checkpoint reads, written from the formats'
// descriptions and not from the readers, with the values that each then stands for.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../base/temp_folder.h"
#include "base/check.h"
#include "tensor/dtype.h"

namespace glint::packers {

struct Tensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

// Writes one safetensors file.
inline void write_safetensors(const TempFolder& folder, const std::string& file,
                              const std::vector<Tensor>& tensors) {
  std::string header, bytes;
  for (const Tensor& tensor : tensors) {
    std::string dims;
    for (const std::int64_t dim : tensor.shape)
      dims += (dims.empty() ? "" : ",") + std::to_string(dim);
    header += (header.empty() ? "{\"" : ",\"") + tensor.name + R"(":{"dtype":")" + tensor.dtype +
              R"(","shape":[)" + dims + R"(],"data_offsets":[)" + std::to_string(bytes.size()) +
              "," + std::to_string(bytes.size() + tensor.bytes.size()) + "]}";
    bytes += tensor.bytes;
  }
  header += "}";
  std::string length;
  for (int i = 0; i < 8; ++i)
    length += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  folder.write(file, length + header + bytes);
}

// One matrix: what the file holds, and what it means.
struct Packed {
  std::vector<Tensor> tensors;
  std::vector<float> values;  // [rows, cols]
};

struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> values;

  float at(std::int64_t r, std::int64_t c) const {
    return values[static_cast<std::size_t>(r * cols + c)];
  }
};

inline void put(std::string& out, std::uint32_t bits, int nbytes) {
  for (int i = 0; i < nbytes; ++i) out += static_cast<char>(bits >> (8 * i));
}

// "BF16", "F16", "F32": a float as the type holds it, and its bytes.
inline float rounded(float value, const std::string& dtype) {
  if (dtype == "BF16") return bf16::from_float(value).to_float();
  return dtype == "F16" ? f16_to_float(f16_from_float(value)) : value;
}
inline void put_float(std::string& out, float value, const std::string& dtype) {
  if (dtype == "BF16") return put(out, bf16::from_float(value).bits, 2);
  if (dtype == "F16") return put(out, f16_from_float(value), 2);
  put(out, std::bit_cast<std::uint32_t>(value), 4);
}

inline std::string float_bytes(const std::vector<float>& values, const std::string& dtype) {
  std::string bytes;
  for (const float value : values) put_float(bytes, value, dtype);
  return bytes;
}

inline float largest(const Matrix& m, std::int64_t r0, std::int64_t r1, std::int64_t c0,
                     std::int64_t c1) {
  float most = 0;
  for (std::int64_t r = r0; r < r1; ++r) {
    for (std::int64_t c = c0; c < c1; ++c) most = std::max(most, std::abs(m.at(r, c)));
  }
  return most;
}

// ---- small floats

// Fields of one sign, `exponent` and `mantissa` bits: the value of a code without NaN or infinity.
inline float small_float(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
  const unsigned mantissa = code & ((1u << mantissa_bits) - 1);
  const unsigned exponent = code >> mantissa_bits & ((1u << exponent_bits) - 1);
  const bool negative = (code >> (exponent_bits + mantissa_bits) & 1) != 0;
  const float unit = std::ldexp(1.0f, -mantissa_bits);
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa) * unit, 1 - bias)
                                        : std::ldexp(1 + static_cast<float>(mantissa) * unit,
                                                     static_cast<int>(exponent) - bias);
  return negative ? -magnitude : magnitude;
}
inline float e4m3(unsigned code) {
  return small_float(code, 4, 3, 7);
}
inline float e2m1(unsigned code) {
  return small_float(code, 2, 1, 1);
}

// The code of the nearest value; codes of one sign are in order.
inline unsigned nearest(float value, unsigned count, unsigned sign,
                        const std::function<float(unsigned)>& decode) {
  unsigned low = 0, high = count - 1;
  const float magnitude = std::abs(value);
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (decode(middle) <= magnitude ? low : high) = middle;
  }
  const unsigned code = magnitude - decode(low) <= decode(high) - magnitude ? low : high;
  return value < 0 ? code | sign : code;
}
inline unsigned to_e4m3(float value) {
  return nearest(value, 127, 0x80, e4m3);
}
inline unsigned to_e2m1(float value) {
  return nearest(value, 8, 8, e2m1);
}

// ---- FP8

struct Fp8 {
  std::int64_t block_rows = 128, block_cols = 128;  // 0: all of them
  std::string scale_name = "weight_scale_inv",
              scale_dtype = "F32";  // "U8", "F8_E8M0": powers of two
  int scale_dims = 2;
};

inline Packed pack_fp8(const std::string& stem, const Matrix& m, const Fp8& f) {
  const std::int64_t br = f.block_rows == 0 ? m.rows : f.block_rows;
  const std::int64_t bc = f.block_cols == 0 ? m.cols : f.block_cols;
  const bool power = f.scale_dtype == "U8" || f.scale_dtype == "F8_E8M0";
  Packed out;
  out.values.resize(m.values.size());
  std::string codes(m.values.size(), '\0'), scales;
  std::int64_t grid_rows = 0, grid_cols = 0;
  for (std::int64_t r0 = 0; r0 < m.rows; r0 += br, ++grid_rows) {
    grid_cols = 0;
    for (std::int64_t c0 = 0; c0 < m.cols; c0 += bc, ++grid_cols) {
      const std::int64_t r1 = std::min(m.rows, r0 + br), c1 = std::min(m.cols, c0 + bc);
      float scale = std::max(largest(m, r0, r1, c0, c1), 1e-6f) / 448;
      if (power) {
        const int exponent = static_cast<int>(std::ceil(std::log2(scale)));
        scale = std::ldexp(1.0f, exponent);
        scales += static_cast<char>(exponent + 127);
      } else {
        scale = rounded(scale, f.scale_dtype);
        put_float(scales, scale, f.scale_dtype);
      }
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) {
          const unsigned code = to_e4m3(m.at(r, c) / scale);
          const auto at = static_cast<std::size_t>(r * m.cols + c);
          codes[at] = static_cast<char>(code);
          out.values[at] = e4m3(code) * scale;
        }
      }
    }
  }
  std::vector<std::int64_t> shape;
  if (f.scale_dims == 2) shape = {grid_rows, grid_cols};
  if (f.scale_dims == 1) shape = {grid_rows * grid_cols};
  out.tensors = {{stem + ".weight", "F8_E4M3", {m.rows, m.cols}, codes},
                 {stem + "." + f.scale_name, f.scale_dtype, shape, scales}};
  return out;
}

// ---- FP4

enum class Fp4 { kModelOpt, kCompressed, kMx, kMxPacked };

inline Packed pack_fp4(const std::string& stem, const Matrix& m, Fp4 kind) {
  const bool mx = kind == Fp4::kMx || kind == Fp4::kMxPacked;
  const bool divides = kind == Fp4::kCompressed;
  const std::int64_t group = mx ? 32 : 16;
  GLINT_CHECK(m.cols % group == 0);
  // ModelOpt stores what scales are multiplied with, compressed-tensors what they are divided by.
  const float most = largest(m, 0, m.rows, 0, m.cols);
  const float stored = divides ? 6 * 448 / most : most / (6 * 448);
  const float global = mx ? 1.0f : divides ? 1.0f / stored : stored;
  Packed out;
  out.values.resize(m.values.size());
  std::string codes(m.values.size() / 2, '\0'), scales;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c0 = 0; c0 < m.cols; c0 += group) {
      const float ideal = std::max(largest(m, r, r + 1, c0, c0 + group), 1e-9f) / 6 / global;
      float scale;
      if (mx) {
        const int exponent = static_cast<int>(std::ceil(std::log2(ideal)));
        scales += static_cast<char>(exponent + 127);
        scale = std::ldexp(1.0f, exponent);
      } else {
        const unsigned code = std::max(to_e4m3(ideal), 1u);
        scales += static_cast<char>(code);
        scale = e4m3(code);
      }
      for (std::int64_t c = c0; c < c0 + group; ++c) {
        const unsigned code = to_e2m1(m.at(r, c) / (scale * global));
        const auto at = static_cast<std::size_t>(r * m.cols + c);
        codes[at / 2] = static_cast<char>(codes[at / 2] | static_cast<char>(code << (c % 2 * 4)));
        out.values[at] = e2m1(code) * scale * global;
      }
    }
  }
  const bool packed = kind == Fp4::kCompressed || kind == Fp4::kMxPacked;
  out.tensors = {
      {stem + (packed ? ".weight_packed" : ".weight"), "U8", {m.rows, m.cols / 2}, codes},
      {stem + ".weight_scale", mx ? "U8" : "F8_E4M3", {m.rows, m.cols / group}, scales}};
  if (!mx) {
    out.tensors.push_back({stem + (divides ? ".weight_global_scale" : ".weight_scale_2"), "F32",
                           divides ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{},
                           float_bytes({stored}, "F32")});
    out.tensors.push_back({stem + (divides ? ".input_global_scale" : ".input_scale"),
                           "F32",
                           {},
                           float_bytes({0.0123f}, "F32")});
  }
  return out;
}

// ---- integers

struct Int {
  int bits = 4;
  std::int64_t group = 32;  // 0: a row
  bool symmetric = true;
  std::string scale_dtype = "BF16";
};

// Codes, scales and zero points of a matrix.
struct Codes {
  std::vector<std::uint32_t> codes;  // [rows, cols]
  std::vector<float> scales;         // [rows, groups]
  std::vector<std::uint32_t> zeros;
  std::int64_t groups = 0;
  std::vector<float> values;
};

inline Codes quantise(const Matrix& m, const Int& f) {
  const std::int64_t group = f.group == 0 ? m.cols : f.group;
  const int most = (1 << f.bits) - 1, middle = 1 << (f.bits - 1);
  Codes out;
  out.groups = (m.cols + group - 1) / group;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c0 = 0; c0 < m.cols; c0 += group) {
      const std::int64_t c1 = std::min(m.cols, c0 + group);
      float low = 0, high = 0;
      for (std::int64_t c = c0; c < c1; ++c) {
        low = std::min(low, m.at(r, c));
        high = std::max(high, m.at(r, c));
      }
      float scale = f.symmetric ? std::max(-low, high) / (static_cast<float>(most) / 2)
                                : (high - low) / static_cast<float>(most);
      scale = rounded(std::max(scale, 1e-5f), f.scale_dtype);
      const int zero =
          f.symmetric ? middle : std::clamp(static_cast<int>(std::lround(-low / scale)), 0, most);
      out.scales.push_back(scale);
      out.zeros.push_back(static_cast<std::uint32_t>(zero));
      for (std::int64_t c = c0; c < c1; ++c) {
        const int code =
            std::clamp(static_cast<int>(std::lround(m.at(r, c) / scale)) + zero, 0, most);
        out.codes.push_back(static_cast<std::uint32_t>(code));
        out.values.push_back(static_cast<float>(code - zero) * scale);
      }
    }
  }
  return out;
}

// Words of `bits` wide fields: `count` fields from get(0) on, the first in the low bits.
inline void put_words(std::string& out, std::int64_t count, int bits,
                      const std::function<std::uint32_t(std::int64_t)>& get) {
  const std::int64_t per_word = 32 / bits;
  for (std::int64_t first = 0; first < count; first += per_word) {
    std::uint32_t word = 0;
    for (std::int64_t i = first; i < std::min(count, first + per_word); ++i)
      word |= get(i) << ((i - first) * bits);
    put(out, word, 4);
  }
}

// compressed-tensors, pack-quantized.
inline Packed pack_compressed(const std::string& stem, const Matrix& m, const Int& f) {
  const Codes q = quantise(m, f);
  const auto at = [](const std::vector<std::uint32_t>& list, std::int64_t i) {
    return list[static_cast<std::size_t>(i)];
  };
  std::string codes, zeros, shape;
  for (std::int64_t r = 0; r < m.rows; ++r)
    put_words(codes, m.cols, f.bits, [&](std::int64_t c) { return at(q.codes, r * m.cols + c); });
  const std::int64_t per_word = 32 / f.bits;
  for (std::int64_t r = 0; r < m.rows; r += per_word) {
    for (std::int64_t g = 0; g < q.groups; ++g)
      put_words(zeros, std::min(per_word, m.rows - r), f.bits,
                [&](std::int64_t i) { return at(q.zeros, (r + i) * q.groups + g); });
  }
  for (const std::int64_t dim : {m.rows, m.cols}) {
    put(shape, static_cast<std::uint32_t>(dim), 4);
    put(shape, 0, 4);
  }
  Packed out{{{stem + ".weight_packed", "I32", {m.rows, (m.cols + per_word - 1) / per_word}, codes},
              {stem + ".weight_scale",
               f.scale_dtype,
               {m.rows, q.groups},
               float_bytes(q.scales, f.scale_dtype)},
              {stem + ".weight_shape", "I64", {2}, shape}},
             q.values};
  if (!f.symmetric) {
    out.tensors.push_back({stem + ".weight_zero_point",
                           "I32",
                           {(m.rows + per_word - 1) / per_word, q.groups},
                           zeros});
  }
  return out;
}

// compressed-tensors, int-quantized.
inline Packed pack_bytes(const std::string& stem, const Matrix& m, Int f) {
  f.bits = 8;
  const Codes q = quantise(m, f);
  std::string codes, zeros;
  for (const std::uint32_t code : q.codes) codes += static_cast<char>(static_cast<int>(code) - 128);
  for (const std::uint32_t zero : q.zeros) zeros += static_cast<char>(static_cast<int>(zero) - 128);
  Packed out{{{stem + ".weight", "I8", {m.rows, m.cols}, codes},
              {stem + ".weight_scale",
               f.scale_dtype,
               {m.rows, q.groups},
               float_bytes(q.scales, f.scale_dtype)}},
             q.values};
  if (!f.symmetric)
    out.tensors.push_back({stem + ".weight_zero_point", "I8", {m.rows, q.groups}, zeros});
  return out;
}

// Scales of AWQ and GPTQ: [groups, rows].
inline Tensor turned_scales(const std::string& stem, const Matrix& m, const Codes& q,
                            const std::string& dtype) {
  std::string bytes;
  for (std::int64_t g = 0; g < q.groups; ++g) {
    for (std::int64_t r = 0; r < m.rows; ++r)
      put_float(bytes, q.scales[static_cast<std::size_t>(r * q.groups + g)], dtype);
  }
  return {stem + ".scales", dtype, {q.groups, m.rows}, bytes};
}

inline Packed pack_awq(const std::string& stem, const Matrix& m, Int f) {
  f.bits = 4;
  f.symmetric = false;
  const Codes q = quantise(m, f);
  constexpr std::array<std::int64_t, 8> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};
  std::string codes, zeros;
  const auto put_row = [&](std::string& out, const std::vector<std::uint32_t>& list,
                           std::int64_t stride, std::int64_t column) {
    for (std::int64_t r = 0; r < m.rows; r += 8) {
      put_words(out, 8, 4, [&](std::int64_t i) {
        const std::int64_t row = r + kOrder[static_cast<std::size_t>(i)];
        return list[static_cast<std::size_t>(row * stride + column)];
      });
    }
  };
  for (std::int64_t c = 0; c < m.cols; ++c) put_row(codes, q.codes, m.cols, c);
  for (std::int64_t g = 0; g < q.groups; ++g) put_row(zeros, q.zeros, q.groups, g);
  return {{{stem + ".qweight", "I32", {m.cols, m.rows / 8}, codes},
           {stem + ".qzeros", "I32", {q.groups, m.rows / 8}, zeros},
           turned_scales(stem, m, q, f.scale_dtype)},
          q.values};
}

// `less`: what the version of the format takes from zero points.
inline Packed pack_gptq(const std::string& stem, const Matrix& m, const Int& f, int less) {
  const Codes q = quantise(m, f);
  const std::int64_t group = f.group == 0 ? m.cols : f.group, per_word = 32 / f.bits;
  const std::uint32_t mask = (1u << f.bits) - 1;
  std::string codes, zeros, order;
  for (std::int64_t c = 0; c < m.cols; c += per_word) {
    for (std::int64_t r = 0; r < m.rows; ++r)
      put_words(codes, per_word, f.bits, [&](std::int64_t i) {
        return q.codes[static_cast<std::size_t>(r * m.cols + c + i)];
      });
  }
  for (std::int64_t g = 0; g < q.groups; ++g) {
    put_words(zeros, m.rows, f.bits, [&](std::int64_t r) {
      return (q.zeros[static_cast<std::size_t>(r * q.groups + g)] -
              static_cast<std::uint32_t>(less)) &
             mask;
    });
  }
  for (std::int64_t c = 0; c < m.cols; ++c) put(order, static_cast<std::uint32_t>(c / group), 4);
  return {{{stem + ".qweight", "I32", {m.cols / per_word, m.rows}, codes},
           {stem + ".qzeros", "I32", {q.groups, m.rows / per_word}, zeros},
           turned_scales(stem, m, q, f.scale_dtype),
           {stem + ".g_idx", "I32", {m.cols}, order}},
          q.values};
}

}  // namespace glint::packers
