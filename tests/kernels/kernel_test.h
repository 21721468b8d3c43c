// What the kernel tests share: a fixture that runs once per instruction set of this machine, and
// deterministic inputs.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/table.h"

namespace glint::test {

inline constexpr double kFloatEpsilon = 0x1p-24;  // half a unit in the last place: one rounding
inline constexpr double kBf16Epsilon = 0x1p-8;
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

class KernelTest : public testing::TestWithParam<Isa> {
 protected:
  KernelTest() : table(kernel_table(GetParam())) {}
  const KernelTable& table;
};

inline std::string isa_test_name(const testing::TestParamInfo<Isa>& param) {
  return std::string(isa_name(param.param));
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(engine_() >> 8) * 0x1p-24f;
  }
  int below(int n) { return static_cast<int>(engine_() % static_cast<unsigned>(n)); }
  std::vector<float> floats(std::size_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = uniform(-1.0f, 1.0f);
    return values;
  }

 private:
  std::mt19937 engine_;
};

// A matrix as a file holds it: elements of float32, bfloat16 or float16, rows `stride` bytes apart,
// NaN between them, and the first byte at an address that only `misalignment` divides. Ends with
// its last element, so that a sanitizer sees every overrun.
class StoredMatrix {
 public:
  StoredMatrix(int rows, int cols, bool is_bf16, int gap_elements = 0, std::size_t misalignment = 0)
      : StoredMatrix(rows, cols, is_bf16 ? DType::kBf16 : DType::kF32, gap_elements, misalignment) {
  }
  StoredMatrix(int rows, int cols, DType type, int gap_elements = 0, std::size_t misalignment = 0)
      : type_(type), element_(dtype_bytes(type)), misalignment_(misalignment), cols_(cols) {
    stride_ = static_cast<std::size_t>(cols + gap_elements) * element_;
    bytes_.resize(misalignment + static_cast<std::size_t>(rows - 1) * stride_ +
                  static_cast<std::size_t>(cols) * element_);
    for (std::size_t at = misalignment; at + element_ <= bytes_.size(); at += element_)
      write(at, kNan);
  }
  void set(int row, int col, float value) { write(offset(row, col), value); }
  float get(int row, int col) const {
    const std::byte* at = bytes_.data() + offset(row, col);
    if (type_ == DType::kF32) {
      float value;
      std::memcpy(&value, at, 4);
      return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, at, 2);
    return type_ == DType::kF16 ? f16_to_float(bits) : bf16{bits}.to_float();
  }
  const std::byte* data() const { return bytes_.data() + misalignment_; }
  std::size_t stride() const { return stride_; }
  int cols() const { return cols_; }

  static StoredMatrix random(Random& random, int rows, int cols, auto type, int gap_elements = 0,
                             std::size_t misalignment = 0) {
    StoredMatrix m(rows, cols, type, gap_elements, misalignment);
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < cols; ++col) m.set(row, col, random.uniform(-1.0f, 1.0f));
    }
    return m;
  }
  static StoredMatrix identity(int size, auto type) {
    StoredMatrix m(size, size, type);
    for (int row = 0; row < size; ++row) {
      for (int col = 0; col < size; ++col) m.set(row, col, row == col ? 1.0f : 0.0f);
    }
    return m;
  }

 private:
  std::size_t offset(int row, int col) const {
    return misalignment_ + static_cast<std::size_t>(row) * stride_ +
           static_cast<std::size_t>(col) * element_;
  }
  void write(std::size_t at, float value) {
    if (type_ == DType::kF32) {
      std::memcpy(bytes_.data() + at, &value, 4);
      return;
    }
    const std::uint16_t bits =
        type_ == DType::kF16 ? f16_from_float(value) : bf16::from_float(value).bits;
    std::memcpy(bytes_.data() + at, &bits, 2);
  }
  DType type_;
  std::size_t element_;
  std::size_t misalignment_;
  std::size_t stride_ = 0;
  int cols_;
  std::vector<std::byte> bytes_;
};

// A 64-byte aligned block of exactly n bytes, filled with a pattern that reads as NaN.
class Block {
 public:
  explicit Block(std::size_t n)
      : size_(n), bytes_(new(std::align_val_t{64}) std::byte[n == 0 ? 1 : n]) {
    std::memset(bytes_, 0xff, n == 0 ? 1 : n);
  }
  Block(Block&& other) noexcept : size_(other.size_), bytes_(other.bytes_) {
    other.bytes_ = nullptr;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { ::operator delete[](bytes_, std::align_val_t{64}); }
  std::byte* data() { return bytes_; }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  std::byte* bytes_;
};

}  // namespace glint::test
