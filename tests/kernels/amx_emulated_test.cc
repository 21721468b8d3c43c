// The AMX kernels on a model of the tile registers: their packing, padding and loops are tested on
// every machine with AVX-512, whether or not it has tiles.
#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernel_test.h"
#include "kernels/amx/tile_state.h"
#include "kernels/table.h"
#include "kernels/target.h"

#if defined(__GNUC__) && !defined(__clang__)
// False alarms of g++ 12 inside its own AVX-512 headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

GLINT_TARGET_BEGIN("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

#include "kernels/amx/attend-inl.h"
#include "kernels/amx/matmul-inl.h"

namespace glint {
namespace {

MatmulKernels emulated_matmul() {
  return TileMatmul<EmulatedTiles>::kernels();
}
AttendKernels emulated_attend() {
  return TileAttend<EmulatedTiles>::kernels();
}

}  // namespace
}  // namespace glint

GLINT_TARGET_END

namespace glint::test {
namespace {

bool has_avx512bf16() {
  const auto isas = available_isas();
  return std::find(isas.begin(), isas.end(), Isa::kAvx512Bf16) != isas.end();
}

struct Buffer {
  explicit Buffer(std::size_t n) : memory(n + 64) {
    start = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  }
  std::vector<std::byte> memory;
  std::byte* start;
};

struct Product {
  std::vector<float> y;
  Product(const MatmulKernels& kernels, const std::vector<float>& x, const StoredMatrix& w,
          int rows, int k, int n, int split)
      : y(static_cast<std::size_t>(rows * n)) {
    Buffer packed(kernels.packed_bytes((rows + 15) / 16 * 16, k)),
        scratch(kernels.scratch_bytes(k));
    kernels.pack(x.data(), static_cast<std::size_t>(k), nullptr, rows, k, packed.start);
    for (int n0 = 0; n0 < n; n0 += split) {
      MatmulArgs args;
      args.x = packed.start;
      args.rows = rows;
      args.k = k;
      args.w = w.data();
      args.w_stride = w.stride();
      args.n0 = n0;
      args.n1 = std::min(n, n0 + split);
      args.y = y.data();
      args.y_stride = static_cast<std::size_t>(n);
      args.scratch = scratch.start;
      kernels.matmul(args);
    }
  }
};

TEST(EmulatedTiles, products_agree_with_the_scalar_table_over_odd_shapes) {
  if (!has_avx512bf16()) GTEST_SKIP() << "needs AVX-512 BF16";
  Random random(1);
  for (const int rows : {1, 2, 3, 16, 17, 33, 47, 65}) {
    for (const int k : {1, 31, 32, 40, 96, 130}) {
      for (const int n : {1, 16, 17, 32, 33, 70}) {
        const auto x = random.floats(static_cast<std::size_t>(rows * k));
        const auto w = StoredMatrix::random(random, n, k, true, 3, 2);
        const Product got(emulated_matmul(), x, w, rows, k, n, 32);
        const Product whole(emulated_matmul(), x, w, rows, k, n, 1 << 20);
        const Product want(kernel_table(Isa::kScalar).bf16, x, w, rows, k, n, 1 << 20);
        ASSERT_EQ(got.y, whole.y);
        // Both round inputs alike; sums of k terms below 1 differ by their order only.
        for (std::size_t i = 0; i < want.y.size(); ++i) {
          ASSERT_NEAR(got.y[i], want.y[i], 2 * k * k * kFloatEpsilon + 1e-30)
              << rows << " x " << k << " x " << n;
        }
      }
    }
  }
}

TEST(EmulatedTiles, hidden_values_come_out_packed_for_the_next_product) {
  if (!has_avx512bf16()) GTEST_SKIP() << "needs AVX-512 BF16";
  Random random(2);
  for (const int rows : {1, 19, 40}) {
    for (const int f : {8, 32, 40, 72, 96}) {
      constexpr int kK = 64, kOut = 20;
      const auto x = random.floats(static_cast<std::size_t>(rows * kK));
      const auto gate = StoredMatrix::random(random, f, kK, true),
                 up = StoredMatrix::random(random, f, kK, true),
                 down = StoredMatrix::random(random, kOut, f, true);
      std::vector<float> results[2];
      for (int which = 0; which < 2; ++which) {
        const MatmulKernels kernels =
            which == 0 ? emulated_matmul() : kernel_table(Isa::kScalar).bf16;
        const int blocks = (rows + 15) / 16 * 16;
        Buffer packed(kernels.packed_bytes(blocks, kK)), hidden(kernels.packed_bytes(blocks, f)),
            scratch(std::max(kernels.scratch_bytes(kK), kernels.scratch_bytes(f)));
        std::fill(hidden.memory.begin(), hidden.memory.end(),
                  std::byte{0xff});  // NaN unless written
        kernels.pack(x.data(), kK, nullptr, rows, kK, packed.start);
        for (int n0 = 0; n0 < f; n0 += 32) {
          GateUpArgs args;
          args.x = packed.start;
          args.rows = rows;
          args.k = kK;
          args.w_gate = gate.data();
          args.w_up = up.data();
          args.w_stride = gate.stride();
          args.n0 = n0;
          args.n1 = std::min(f, n0 + 32);
          args.n_total = f;
          if (rows == 19) args.limit = 0.7f;
          args.z = hidden.start;
          args.scratch = scratch.start;
          kernels.gate_up(args);
        }
        results[which].resize(static_cast<std::size_t>(rows * kOut));
        MatmulArgs args;
        args.x = hidden.start;
        args.rows = rows;
        args.k = f;
        args.w = down.data();
        args.w_stride = down.stride();
        args.n1 = kOut;
        args.y = results[which].data();
        args.y_stride = kOut;
        args.scratch = scratch.start;
        kernels.matmul(args);
      }
      for (std::size_t i = 0; i < results[0].size(); ++i) {
        // A hidden value may round to the neighbouring bf16 when its sums differ in the last place.
        ASSERT_NEAR(results[0][i], results[1][i], 0.02 * std::sqrt(f) + 0.02)
            << rows << " rows, f " << f;
      }
    }
  }
}

TEST(EmulatedTiles, attention_agrees_with_the_scalar_table_over_odd_heads) {
  if (!has_avx512bf16()) GTEST_SKIP() << "needs AVX-512 BF16";
  Random random(3);
  for (const auto& [dk, dv] : {std::pair{576, 512}, {256, 256}, {40, 32}, {17, 9}, {96, 128}}) {
    for (const auto& [rows, keys] : {std::pair{1, 1}, {5, 63}, {16, 64}, {20, 100}, {33, 256}}) {
      const auto q = StoredMatrix::random(random, rows, dk, true);
      std::vector<StoredMatrix> pages;
      std::vector<const std::byte*> k_pages, v_pages;
      for (int p = 0; p * kAttendPage < keys; ++p)
        pages.push_back(StoredMatrix::random(random, kAttendPage, dk + dv, true));
      for (std::size_t p = 0; p < pages.size(); ++p) {
        // What lies beyond the keys must not matter.
        for (int key = 0; key < kAttendPage; ++key) {
          if (static_cast<int>(p) * kAttendPage + key < keys) continue;
          for (int d = 0; d < dk + dv; ++d) pages[p].set(key, d, kNan);
        }
        k_pages.push_back(pages[p].data());
        v_pages.push_back(pages[p].data() + 2 * dk);
      }
      std::vector<std::int32_t> visible;
      for (int r = 0; r < rows; ++r)
        visible.push_back(r == rows - 1 ? keys : random.below(keys + 1));
      // Every other shape hides some keys, which then hold what they like.
      const int first_key = rows % 2 == 0 ? 0 : random.below(keys);
      for (int key = 0; key < first_key; ++key) {
        for (int d = 0; d < dk + dv; ++d)
          pages[static_cast<std::size_t>(key / kAttendPage)].set(key % kAttendPage, d, kNan);
      }
      std::vector<float> out[2], sum[2], max[2];
      for (int which = 0; which < 2; ++which) {
        const AttendKernels kernels =
            which == 0 ? emulated_attend() : kernel_table(Isa::kScalar).attend_bf16;
        Buffer scratch(kernels.scratch_bytes(rows, dk, dv));
        out[which].resize(static_cast<std::size_t>(rows * dv));
        sum[which].resize(static_cast<std::size_t>(rows));
        max[which].resize(static_cast<std::size_t>(rows));
        AttendArgs args;
        args.q = q.data();
        args.q_stride = q.stride() / 2;
        args.rows = rows;
        args.visible = visible.data();
        args.num_keys = keys;
        args.first_key = first_key;
        args.k_pages = k_pages.data();
        args.v_pages = v_pages.data();
        args.k_stride = args.v_stride = pages[0].stride();
        args.dk = dk;
        args.dv = dv;
        args.scale = 0.1f;
        args.max = max[which].data();
        args.sum = sum[which].data();
        args.out = out[which].data();
        args.out_stride = static_cast<std::size_t>(dv);
        args.scratch = scratch.start;
        kernels.attend(args);
      }
      for (int r = 0; r < rows; ++r) {
        const auto at = static_cast<std::size_t>(r);
        if (visible[at] <= first_key) {
          ASSERT_EQ(sum[0][at], 0.0f);
          ASSERT_EQ(max[0][at], -kInf);
          continue;
        }
        ASSERT_NEAR(max[0][at], max[1][at], 1e-4);
        ASSERT_NEAR(sum[0][at], sum[1][at], 1e-3 * sum[1][at]);
        for (int d = 0; d < dv; ++d) {
          const auto i = static_cast<std::size_t>(r * dv + d);
          // Weights are rounded to bf16: at most 2^-9 of a mean of values below 1.
          ASSERT_NEAR(out[0][i] / sum[0][at], out[1][i] / sum[1][at], kBf16Epsilon)
              << "dk " << dk << " keys " << keys;
        }
      }
    }
  }
}

}  // namespace
}  // namespace glint::test
