#include "tools/machine_probe.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns falsely inside its AVX-512 headers
#endif
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "base/aligned.h"
#include "kernels/target.h"

namespace glint {
namespace {

constexpr std::size_t kPiece = 4u << 20;  // bytes of one task: small enough to share out evenly
constexpr int kReadPasses = 5;
constexpr int kPeakPasses = 5;
constexpr double kPeakSeconds = 0.03;  // of one pass

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Keeps a value without storing it.
template <typename T>
void keep(const T& value) {
  asm volatile("" : : "x"(value) : "memory");
}

std::uint64_t read_baseline(const std::byte* data, std::size_t nbytes) {
  __m128i sums[4] = {};
  const auto* at = reinterpret_cast<const __m128i*>(data);
  for (std::size_t i = 0; i < nbytes / sizeof(__m128i); i += 4) {
    for (std::size_t k = 0; k < 4; ++k)
      sums[k] = _mm_xor_si128(sums[k], _mm_load_si128(at + i + k));
  }
  const __m128i sum =
      _mm_xor_si128(_mm_xor_si128(sums[0], sums[1]), _mm_xor_si128(sums[2], sums[3]));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(sum));
}

// 8 chains of one multiplication and one addition of 4 floats.
std::uint64_t flops_sse(std::uint64_t rounds) {
  __m128 sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = _mm_set1_ps(static_cast<float>(i));
  const __m128 factor = _mm_set1_ps(0.999F), term = _mm_set1_ps(0.001F);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (__m128& sum : sums) sum = _mm_add_ps(_mm_mul_ps(sum, factor), term);
  }
  for (const __m128& sum : sums) keep(sum);
  return rounds * 8 * 4 * 2;
}

// Without newer instructions bytes are multiplied as words: 8 products, added in pairs.
std::uint64_t flops_int8_sse(std::uint64_t rounds) {
  __m128i sums[8] = {};
  __m128i words = _mm_set1_epi16(3);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    asm volatile("" : "+x"(words));  // otherwise the products are computed once
    for (__m128i& sum : sums) sum = _mm_add_epi32(sum, _mm_madd_epi16(words, words));
  }
  for (const __m128i& sum : sums) keep(sum);
  return rounds * 8 * 8 * 2;
}

}  // namespace

GLINT_TARGET_BEGIN("avx2,fma")
namespace {

std::uint64_t read_avx2(const std::byte* data, std::size_t nbytes) {
  __m256i sums[4] = {};
  const auto* at = reinterpret_cast<const __m256i*>(data);
  for (std::size_t i = 0; i < nbytes / sizeof(__m256i); i += 4) {
    for (std::size_t k = 0; k < 4; ++k) {
      sums[k] = _mm256_xor_si256(sums[k], _mm256_load_si256(at + i + k));
    }
  }
  const __m256i sum =
      _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sum, 0));
}

// Latency 4, two units: 12 chains keep both busy.
std::uint64_t flops_fma256(std::uint64_t rounds) {
  __m256 sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999F), term = _mm256_set1_ps(0.001F);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    GLINT_UNROLL
    for (int i = 0; i < 12; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
  }
  for (const __m256& sum : sums) asm volatile("" : : "x"(sum));
  return rounds * 12 * 8 * 2;
}

// 32 products added in pairs, pairs of those added by a multiplication with 1, then to the sum.
std::uint64_t flops_int8_pairs256(std::uint64_t rounds) {
  __m256i sums[8] = {};
  __m256i codes = _mm256_set1_epi8(3);
  const __m256i ones = _mm256_set1_epi16(1);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    GLINT_UNROLL
    for (int i = 0; i < 8; ++i) {
      asm volatile("" : "+x"(codes));  // otherwise equal products are computed once
      const __m256i pairs = _mm256_maddubs_epi16(codes, codes);
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
    }
  }
  for (const __m256i& sum : sums) asm volatile("" : : "x"(sum));
  return rounds * 8 * 32 * 2;
}

}  // namespace
GLINT_TARGET_END

GLINT_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512bf16")
namespace {

std::uint64_t read_avx512(const std::byte* data, std::size_t nbytes) {
  __m512i sums[8];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (std::size_t at = 0; at < nbytes; at += sizeof sums) {
    GLINT_UNROLL
    for (std::size_t k = 0; k < 8; ++k) {
      sums[k] = _mm512_xor_si512(sums[k], _mm512_load_si512(data + at + k * sizeof(__m512i)));
    }
  }
  for (int k = 1; k < 8; ++k) sums[0] = _mm512_xor_si512(sums[0], sums[k]);
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm512_castsi512_si128(sums[0])));
}

std::uint64_t flops_fma512(std::uint64_t rounds) {
  __m512 sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999F), term = _mm512_set1_ps(0.001F);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    GLINT_UNROLL
    for (int i = 0; i < 12; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
  }
  for (const __m512& sum : sums) asm volatile("" : : "v"(sum));
  return rounds * 12 * 16 * 2;
}

std::uint64_t flops_dot_bf16(std::uint64_t rounds) {
  __m512 sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const auto pairs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3c003c00));
  for (std::uint64_t round = 0; round < rounds; ++round) {
    GLINT_UNROLL
    for (int i = 0; i < 12; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], pairs, pairs);
  }
  for (const __m512& sum : sums) asm volatile("" : : "v"(sum));
  return rounds * 12 * 32 * 2;
}

}  // namespace
GLINT_TARGET_END

GLINT_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512vnni")
namespace {

std::uint64_t flops_int8_vnni512(std::uint64_t rounds) {
  __m512i sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = _mm512_set1_epi32(i);
  const __m512i codes = _mm512_set1_epi8(3);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    GLINT_UNROLL
    for (int i = 0; i < 12; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], codes, codes);
  }
  for (const __m512i& sum : sums) asm volatile("" : : "v"(sum));
  return rounds * 12 * 64 * 2;
}

}  // namespace
GLINT_TARGET_END

GLINT_TARGET_BEGIN("amx-tile,amx-bf16,amx-int8")
namespace {

struct alignas(64) TileConfig {
  std::uint8_t palette = 0;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Eight tiles of 16 rows of 64 bytes, all zeros; the thread's own configuration comes back at the
// end.
class ProbeTiles {
 public:
  ProbeTiles() {
    _tile_storeconfig(&before_);
    TileConfig mine;
    mine.palette = 1;
    for (int i = 0; i < 8; ++i) {
      mine.row_bytes[i] = 64;
      mine.rows[i] = 16;
    }
    // g++ thinks that loading a configuration reads 8 bytes of it.
    asm volatile("" : : "r"(&mine), "r"(&before_) : "memory");
    _tile_loadconfig(&mine);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
  }
  ~ProbeTiles() {
    if (before_.palette != 0) {
      _tile_loadconfig(&before_);
    } else {
      _tile_release();
    }
  }
  ProbeTiles(const ProbeTiles&) = delete;
  ProbeTiles& operator=(const ProbeTiles&) = delete;

 private:
  TileConfig before_;
};

// 16 x 16 sums of 32 products each. Four independent accumulators.
std::uint64_t flops_amx_bf16(std::uint64_t rounds) {
  const ProbeTiles tiles;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return rounds * 4 * 16 * 16 * 32 * 2;
}

// The same with 64 products each.
std::uint64_t flops_int8_amx(std::uint64_t rounds) {
  const ProbeTiles tiles;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  return rounds * 4 * 16 * 16 * 64 * 2;
}

}  // namespace
GLINT_TARGET_END

namespace {

using ReadFn = std::uint64_t (*)(const std::byte*, std::size_t);
using FlopsFn = std::uint64_t (*)(std::uint64_t rounds);

ReadFn best_read() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
  return read_baseline;
}

FlopsFn flops_function(PeakKind kind) {
  switch (kind) {
    case PeakKind::kSse:
      return flops_sse;
    case PeakKind::kFma256:
      return flops_fma256;
    case PeakKind::kFma512:
      return flops_fma512;
    case PeakKind::kDotBf16:
      return flops_dot_bf16;
    case PeakKind::kAmxBf16:
      return flops_amx_bf16;
    case PeakKind::kInt8Sse:
      return flops_int8_sse;
    case PeakKind::kInt8Pairs256:
      return flops_int8_pairs256;
    case PeakKind::kInt8Vnni512:
      return flops_int8_vnni512;
    case PeakKind::kInt8Amx:
      return flops_int8_amx;
  }
  return flops_sse;
}

// So many rounds that one call takes about kPeakSeconds.
std::uint64_t calibrate(FlopsFn flops) {
  std::uint64_t rounds = 1000;
  for (;;) {
    const auto start = Clock::now();
    flops(rounds);
    const double took = seconds_since(start);
    if (took >= kPeakSeconds / 10) {
      return static_cast<std::uint64_t>(static_cast<double>(rounds) * kPeakSeconds / took) + 1;
    }
    rounds *= 4;
  }
}

}  // namespace

double read_bandwidth(ThreadPool& pool, std::size_t nbytes) {
  const std::size_t pieces = std::max<std::size_t>(1, nbytes / kPiece);
  AlignedBuffer buffer(pieces * kPiece);
  pool.run(pieces, [&](std::size_t piece, int) {
    std::memset(buffer.data() + piece * kPiece, static_cast<int>(piece % 255) + 1, kPiece);
  });
  const ReadFn read = best_read();
  double best = 0;
  for (int pass = 0; pass < kReadPasses; ++pass) {
    const auto start = Clock::now();
    pool.run(pieces, [&](std::size_t piece, int) {
      const std::uint64_t sum = read(buffer.data() + piece * kPiece, kPiece);
      asm volatile("" : : "r"(sum));
    });
    best = std::max(best, static_cast<double>(pieces * kPiece) / seconds_since(start));
  }
  return best;
}

PeakKind peak_kind(Isa isa, Compute compute) {
  switch (isa) {
    case Isa::kScalar:
      return PeakKind::kSse;
    case Isa::kAvx2:
      return PeakKind::kFma256;
    case Isa::kAvx512:
      return PeakKind::kFma512;
    case Isa::kAvx512Bf16:
      return compute == Compute::kF32 ? PeakKind::kFma512 : PeakKind::kDotBf16;
    case Isa::kAmx:
      return compute == Compute::kF32 ? PeakKind::kFma512 : PeakKind::kAmxBf16;
  }
  return PeakKind::kSse;
}

PeakKind int8_peak_kind(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return PeakKind::kInt8Sse;
    case Isa::kAvx2:
      return PeakKind::kInt8Pairs256;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      return has_vnni512() ? PeakKind::kInt8Vnni512 : PeakKind::kInt8Pairs256;
    case Isa::kAmx:
      return PeakKind::kInt8Amx;
  }
  return PeakKind::kInt8Sse;
}

std::string_view peak_name(PeakKind kind) {
  constexpr std::array<std::string_view, kNumPeakKinds> kNames = {
      "float32 SSE",           "float32 FMA 256", "float32 FMA 512",
      "bf16 dot products 512", "bf16 AMX tiles",  "int8 SSE",
      "int8 pairs 256",        "int8 VNNI 512",   "int8 AMX tiles"};
  return kNames[static_cast<std::size_t>(kind)];
}

double peak_flops(ThreadPool& pool, PeakKind kind) {
  const FlopsFn flops = flops_function(kind);
  const std::uint64_t rounds = calibrate(flops);
  const auto threads = static_cast<std::size_t>(pool.num_threads());
  double best = 0;
  for (int pass = 0; pass < kPeakPasses; ++pass) {
    std::vector<std::uint64_t> done(threads, 0);
    const auto start = Clock::now();
    pool.run(threads, [&](std::size_t task, int) { done[task] = flops(rounds); });
    const double took = seconds_since(start);
    double total = 0;
    for (const std::uint64_t count : done) total += static_cast<double>(count);
    best = std::max(best, total / took);
  }
  return best;
}

}  // namespace glint
