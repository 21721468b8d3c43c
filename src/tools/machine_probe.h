// What this machine can do at best, measured: the floors that `glint bench` compares with.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/thread_pool.h"
#include "kernels/isa.h"
#include "ops/matmul.h"

namespace glint {

// Bytes per second that all threads of the pool together read from `nbytes` of memory, the best of
// several passes. Allocates nbytes.
double read_bandwidth(ThreadPool& pool, std::size_t nbytes);

// The instruction whose rate bounds matrix products.
enum class PeakKind {
  kSse,
  kFma256,
  kFma512,
  kDotBf16,
  kAmxBf16,
  kInt8Sse,
  kInt8Pairs256,
  kInt8Vnni512,
  kInt8Amx
};
inline constexpr int kNumPeakKinds = 9;
// For float weights.
PeakKind peak_kind(Isa isa, Compute compute);
// For low-bit weights that meet int8 activations.
PeakKind int8_peak_kind(Isa isa);
std::string_view peak_name(PeakKind kind);

// Multiplications and additions per second of all threads together, register to register, the best
// of several passes. The machine must have the instruction.
double peak_flops(ThreadPool& pool, PeakKind kind);

}  // namespace glint
