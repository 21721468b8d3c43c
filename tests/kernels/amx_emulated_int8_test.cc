// The int8 products on a model of the tile registers: their groups, padding and pipeline are tested
// on every machine with AVX-512 VNNI, whether or not it has tiles.
#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/amx/panel.h"
#include "kernels/amx/tile_state.h"
#include "kernels/int8_rows.h"
#include "kernels/table.h"
#include "kernels/target.h"
#include "low_bit_matrix.h"
#include "tensor/panel.h"

#if defined(__GNUC__) && !defined(__clang__)
// False alarms of g++ 12 inside its own AVX-512 headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

GLINT_TARGET_BEGIN("avx512bf16,avx512vnni,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")

#include "kernels/amx/panel-inl.h"

namespace glint {
namespace {

template <DType kType>
constexpr PanelProduct kEmulated = TilePanel<EmulatedTiles, kType>::product;

std::size_t emulated_scratch(int k) {
  return tile_panel_scratch(k);
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint::test {
namespace {

bool can_run() {
  const auto isas = available_isas();
  return has_vnni512() && std::find(isas.begin(), isas.end(), Isa::kAvx512Bf16) != isas.end();
}

// The rows of one panel's product that are defined.
std::vector<float> product(PanelProduct function, const std::byte* x, int rows, int k,
                           LowBitMatrix& w, std::size_t scratch_bytes) {
  const std::size_t whole = static_cast<std::size_t>((rows + kRowBlock - 1) / kRowBlock);
  Block out(whole * kRowBlock * kPanelRows * sizeof(float)), scratch(scratch_bytes);
  PanelArgs args;
  args.x = x;
  args.rows = rows;
  args.k = k;
  args.panel = w.panels();
  args.out = reinterpret_cast<float*>(out.data());
  args.scratch = scratch.data();
  function(args);
  return {args.out, args.out + rows * kPanelRows};
}

struct Case {
  DType type;
  PanelProduct emulated;
  std::vector<int> widths;
};

// Groups of 32 and of 16, with and without minima, of every kind of scale; widths that are no whole
// number of int8 blocks where the type has such.
const Case kCases[] = {
    {DType::kQ4_0, kEmulated<DType::kQ4_0>, {32, 128, 160, 416}},
    {DType::kQ8_0, kEmulated<DType::kQ8_0>, {96, 256}},
    {DType::kQ5_1, kEmulated<DType::kQ5_1>, {64, 416}},
    {DType::kMXFP4, kEmulated<DType::kMXFP4>, {96, 128}},
    {DType::kNVFP4, kEmulated<DType::kNVFP4>, {64, 192, 448}},
    {DType::kQ2_K, kEmulated<DType::kQ2_K>, {256, 768}},
    {DType::kQ3_K, kEmulated<DType::kQ3_K>, {256}},
    {DType::kQ4_K, kEmulated<DType::kQ4_K>, {256, 768}},
    {DType::kQ6_K, kEmulated<DType::kQ6_K>, {256, 768}},
    {DType::kIQ3_S, kEmulated<DType::kIQ3_S>, {256}},
    {DType::kIQ1_M, kEmulated<DType::kIQ1_M>, {256}},
};

TEST(EmulatedInt8Tiles, products_have_the_bits_of_the_scalar_table) {
  if (!can_run()) GTEST_SKIP() << "needs AVX-512 BF16 and VNNI";
  const KernelTable& scalar = kernel_table(Isa::kScalar);
  Random random(21);
  for (const Case& c : kCases) {
    for (const int k : c.widths) {
      LowBitMatrix w(random, c.type, kPanelRows, k);
      for (const int rows : {1, 7, 8, 16, 17, 40}) {
        const auto x = random.floats(size(rows) * size(k));
        Block packed(scalar.int8.packed_bytes((rows + kRowBlock - 1) / kRowBlock * kRowBlock, k));
        scalar.int8.pack(x.data(), size(k), nullptr, rows, k, packed.data());
        const auto want = product(scalar.panel_int8[index_of(c.type)], packed.data(), rows, k, w,
                                  scalar.int8.scratch_bytes(k));
        const auto got = product(c.emulated, packed.data(), rows, k, w, emulated_scratch(k));
        ASSERT_EQ(got, want) << dtype_name(c.type) << " k " << k << " rows " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace glint::test
