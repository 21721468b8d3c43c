// Packed rows of the cache: every table against the portable code of tensor/row_format.h, bit for
// bit.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "kernel_test.h"
#include "tensor/row_format.h"

namespace glint {
namespace {

using test::kInf;
using test::kNan;

struct Format {
  RowFormat format;
  int group;
  const RowKernels& (*kernels)(const KernelTable&);
  void (*pack)(const float*, int, std::byte*);
  void (*unpack)(const std::byte*, int, bf16*);
};

const Format kFormats[] = {
    {RowFormat::kFp8, kFp8RowGroup,
     [](const KernelTable& t) -> const RowKernels& { return t.fp8_rows; }, pack_fp8_row,
     unpack_fp8_row},
    {RowFormat::kFp4, kFp4RowGroup,
     [](const KernelTable& t) -> const RowKernels& { return t.fp4_rows; }, pack_fp4_row,
     unpack_fp4_row},
};

// Of exactly the size, so that a sanitizer sees every overrun.
std::vector<std::byte> packed(const Format& f, const std::vector<float>& x) {
  std::vector<std::byte> row(row_bytes(f.format, static_cast<int>(x.size())));
  f.pack(x.data(), static_cast<int>(x.size()), row.data());
  return row;
}

std::vector<std::uint16_t> bits(const std::vector<bf16>& values) {
  std::vector<std::uint16_t> out;
  for (const bf16 v : values) out.push_back(v.bits);
  return out;
}

class Rows : public test::KernelTest {
 protected:
  void expect_packed_alike(const Format& f, const std::vector<float>& x) {
    std::vector<std::byte> row(row_bytes(f.format, static_cast<int>(x.size())), std::byte{0xa5});
    f.kernels(table).pack(x.data(), static_cast<int>(x.size()), row.data());
    EXPECT_EQ(row, packed(f, x)) << row_format_name(f.format) << " of " << x.size();
  }
  void expect_unpacked_alike(const Format& f, const std::vector<std::byte>& row, int width) {
    std::vector<bf16> got(static_cast<std::size_t>(width)), want(got.size());
    f.kernels(table).unpack(row.data(), row.size(), 1, width, got.data());
    f.unpack(row.data(), width, want.data());
    EXPECT_EQ(bits(got), bits(want)) << row_format_name(f.format) << " of " << width;
  }
};

TEST_P(Rows, every_width_is_packed_and_unpacked_to_the_same_bits) {
  test::Random random(1);
  for (const Format& f : kFormats) {
    for (int width = 1; width <= 130; ++width) {
      std::vector<float> x = random.floats(static_cast<std::size_t>(width));
      // Groups of very different size, with zeros among them.
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] *= std::ldexp(1.0f, static_cast<int>(i / 16) * 9 - 30) * (i % 7 == 3 ? 0.0f : 1.0f);
      expect_packed_alike(f, x);
      expect_unpacked_alike(f, packed(f, x), width);
    }
    for (const int width : {512, 576, 1040}) {
      const std::vector<float> x = random.floats(static_cast<std::size_t>(width));
      expect_packed_alike(f, x);
      expect_unpacked_alike(f, packed(f, x), width);
    }
  }
}

TEST_P(Rows, every_exponent_and_what_lies_halfway_is_rounded_alike) {
  test::Random random(2);
  for (const Format& f : kFormats) {
    for (int exponent = -149; exponent <= 127; ++exponent) {
      std::vector<float> x;
      for (int i = 0; i < 2 * f.group; ++i) {
        // Few bits: many of the quotients are halfway between two elements.
        const float fraction = 1 + static_cast<float>(random.below(64)) / 64;
        const float value = std::ldexp(fraction, exponent - random.below(14));
        x.push_back(random.below(2) == 0 ? value : -value);
      }
      expect_packed_alike(f, x);
      expect_unpacked_alike(f, packed(f, x), static_cast<int>(x.size()));
    }
  }
}

TEST_P(Rows, the_largest_values_and_those_that_are_no_numbers_are_packed_alike) {
  test::Random random(3);
  const float largest = std::numeric_limits<float>::max();
  for (const Format& f : kFormats) {
    for (const float odd :
         {kNan, -kNan, kInf, -kInf, largest, -largest, 448.0f, 2688.0f, 0x1p-149f}) {
      for (const std::size_t at :
           {std::size_t{0}, std::size_t{15}, std::size_t{31}, std::size_t{47}}) {
        std::vector<float> x = random.floats(48);
        x[at] = odd;
        expect_packed_alike(f, x);
        expect_unpacked_alike(f, packed(f, x), 48);
      }
    }
    expect_packed_alike(f, std::vector<float>(48, 0.0f));
    expect_packed_alike(f, std::vector<float>(48, -0.0f));
  }
}

TEST_P(Rows, every_element_under_every_scale_is_unpacked_alike) {
  for (const Format& f : kFormats) {
    const int codes = f.format == RowFormat::kFp8 ? 256 : 16;
    const std::size_t data = row_bytes(f.format, codes) - static_cast<std::size_t>(codes / f.group);
    std::vector<std::byte> row(row_bytes(f.format, codes));
    for (std::size_t i = 0; i < data; ++i) {
      row[i] = static_cast<std::byte>(f.format == RowFormat::kFp8 ? i : (2 * i) | (2 * i + 1) << 4);
    }
    for (int scale = 0; scale < 256; ++scale) {
      std::fill(row.begin() + static_cast<std::ptrdiff_t>(data), row.end(),
                static_cast<std::byte>(scale));
      expect_unpacked_alike(f, row, codes);
    }
  }
}

TEST_P(Rows, rows_apart_are_unpacked_one_after_the_other) {
  test::Random random(4);
  for (const Format& f : kFormats) {
    constexpr int kWidth = 80, kRows = 5;
    const std::size_t stride = row_bytes(f.format, kWidth) + 7;
    std::vector<std::byte> rows(stride * kRows - 7);
    std::vector<bf16> want(kRows * kWidth), got(want.size());
    for (int r = 0; r < kRows; ++r) {
      std::byte* row = rows.data() + static_cast<std::size_t>(r) * stride;
      f.pack(random.floats(kWidth).data(), kWidth, row);
      f.unpack(row, kWidth, want.data() + r * kWidth);
    }
    f.kernels(table).unpack(rows.data(), stride, kRows, kWidth, got.data());
    EXPECT_EQ(bits(got), bits(want));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, Rows, testing::ValuesIn(available_isas()), test::isa_test_name);

}  // namespace
}  // namespace glint
