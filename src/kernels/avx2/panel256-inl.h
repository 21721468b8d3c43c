// Panels of low-bit weights (tensor/panel.h) in AVX2 registers: a register of a step is two halves,
// rows 0 to 7 and rows 8 to 15. Included inside a target region with F16C.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/int8_rows.h"
#include "kernels/target.h"
#include "tensor/panel.h"

namespace glint {
namespace {

constexpr int kBlockSteps = kInt8Block / kPanelStep;

inline __m256i load_bytes(const std::byte* at) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
}

// The bits of each byte moved left, or right if negative, and then those under `mask`.
[[gnu::always_inline]] inline __m256i moved_bits(__m256i v, int left, int mask) {
  const __m256i all = left >= 0 ? _mm256_slli_epi16(v, left) : _mm256_srli_epi16(v, -left);
  return _mm256_and_si256(all, _mm256_set1_epi8(static_cast<char>(mask)));
}

// How codes are multiplied with int8 in sixteen bits, where two products at most 127 * 255 each may
// not fit.
struct Int8Kind {
  int group = 32;
  bool has_min = false;
  bool has_zeros = false;
  // Codes as unsigned bytes stand for code - zero. Else they are signed, and the sign moves over to
  // the activations.
  bool is_signed = false;
  int zero = 0;
  int fit = 1;  // so many registers of pairs of products add up in sixteen bits: 1, 2, 4, 8

  constexpr int groups_per_step() const { return kPanelStep / group; }
};

constexpr Int8Kind int8_kind(const PanelFormat& f) {
  int least = 0, most = 0;
  for (int c = 0; c < 1 << f.code_bits; ++c) {
    const int value = f.has_table ? f.table[static_cast<std::size_t>(c)] : c - f.signed_zero();
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  constexpr int kMost = 32767 / (2 * 127);  // of an unsigned byte
  Int8Kind kind;
  kind.group = f.group;
  kind.has_min = f.has_min;
  kind.has_zeros = f.has_zeros;
  kind.is_signed = most - least > kMost;
  kind.zero = kind.is_signed ? 0 : -least;
  const int bound = kind.is_signed ? (most > -least ? most : -least) : most - least;
  while (kind.fit < f.group / 4 && 2 * kind.fit * bound <= kMost) kind.fit *= 2;
  return kind;
}

// kInt8Block columns of a panel as they lie.
template <DType kType>
class PackedBlock {
 public:
  static constexpr PanelFormat kFormat = make_panel_format(kType);
  static constexpr Int8Kind kKind = int8_kind(kFormat);

  [[gnu::always_inline]] PackedBlock(const std::byte* panel, int k, int block)
      : codes_(panel + size(block) * kBlockSteps * kFormat.step_bytes()),
        scales_(panel + kFormat.scales_at(size(k)) + size(block) * kGroups * kScaleBytes),
        mins_(panel + kFormat.mins_at(size(k)) + size(block) * kGroups * kScaleBytes),
        zeros_(panel + kFormat.zeros_at(size(k)) + size(block) * kGroups * kPanelRows) {
    if constexpr (kFormat.is_super()) {
      const std::size_t super = size(block) * kInt8Block / 256 * 32;
      for (int half = 0; half < 2; ++half) {
        const std::byte* d = panel + kFormat.d_at(size(k)) + super + 16 * half;
        d_[half] = _mm256_mul_ps(halves(d), _mm256_set1_ps(kFormat.unit));
        if constexpr (kFormat.has_min)
          dmin_[half] = halves(panel + kFormat.dmin_at(size(k)) + super + 16 * half);
      }
    }
  }

  // Columns 4v to 4v + 3 of a step of eight rows, a byte each: unsigned with kKind.zero or signed.
  [[gnu::always_inline]] __m256i codes(int step, int v, int half) const {
    const __m256i c = stored_codes(step, v, half);
    if constexpr (kFormat.has_table) {
      return _mm256_shuffle_epi8(table(kKind.zero), c);
    } else if constexpr (kKind.is_signed) {
      return _mm256_sub_epi8(c, bytes(kFormat.signed_zero()));
    } else {
      return c;
    }
  }

  // The same as signed bytes whatever the kind.
  [[gnu::always_inline]] __m256i signed_codes(int step, int v, int half) const {
    const __m256i c = stored_codes(step, v, half);
    if constexpr (kFormat.has_table) return _mm256_shuffle_epi8(table(0), c);
    return _mm256_sub_epi8(c, bytes(kFormat.signed_zero()));
  }

  // Of group `group` of the block, eight rows.
  [[gnu::always_inline]] __m256 scale(int group, int half) const {
    const std::byte* at = scales_ + size(group) * kScaleBytes + half * (kScaleBytes / 2);
    if constexpr (kFormat.scale == PanelScale::kHalf) {
      return halves(at);
    } else if constexpr (kFormat.scale == PanelScale::kFloat) {
      return _mm256_load_ps(reinterpret_cast<const float*>(at));
    } else if constexpr (kFormat.scale == PanelScale::kBf16) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(at)), 16));
    } else if constexpr (kFormat.scale == PanelScale::kSuperS8) {
      return scaled(d_[half], _mm256_cvtepi8_epi32(load8(at)));
    } else if constexpr (kFormat.scale == PanelScale::kSuperNibbles) {
      return scaled(d_[half], _mm256_cvtepu8_epi32(_mm_and_si128(load8(at), _mm_set1_epi8(15))));
    } else {
      return scaled(d_[half], _mm256_cvtepu8_epi32(load8(at)));
    }
  }

  [[gnu::always_inline]] __m256 minimum(int group, int half) const {
    const std::size_t offset = size(group) * kScaleBytes + half * (kScaleBytes / 2);
    if constexpr (kFormat.scale == PanelScale::kHalf) {
      return halves(mins_ + offset);
    } else {
      __m256i m;
      if constexpr (kFormat.scale == PanelScale::kSuperNibbles) {
        m = _mm256_srli_epi32(_mm256_cvtepu8_epi32(load8(scales_ + offset)), 4);
      } else {
        m = _mm256_cvtepu8_epi32(load8(mins_ + offset));
      }
      return _mm256_xor_ps(scaled(dmin_[half], m), _mm256_set1_ps(-0.0f));
    }
  }

  // What the group's zero is to signed codes, and to kKind's.
  [[gnu::always_inline]] __m256 zero(int group, int half) const {
    const __m256i z = _mm256_cvtepu8_epi32(load8(zeros_ + size(group) * kPanelRows + 8 * half));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(z, _mm256_set1_epi32(kFormat.signed_zero())));
  }

 private:
  static_assert(!kFormat.has_zeros || kKind.is_signed || kFormat.signed_zero() == 0);
  static constexpr std::size_t kGroups = kInt8Block / static_cast<std::size_t>(kFormat.group);
  static constexpr std::size_t kScaleBytes = kFormat.scale_bytes();

  static constexpr std::size_t size(int n) { return static_cast<std::size_t>(n); }
  static __m256i bytes(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
  static __m128i load16(const std::byte* at) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(at));
  }
  static __m128i load8(const std::byte* at) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
  }
  static __m256 halves(const std::byte* at) { return _mm256_cvtph_ps(load16(at)); }
  static __m256 scaled(__m256 d, __m256i factor) {
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(factor));
  }
  // A table's values plus `zero`.
  static __m256i table(int zero) {
    alignas(16) std::int8_t values[16];
    for (std::size_t i = 0; i < 16; ++i)
      values[i] = static_cast<std::int8_t>(kFormat.table[i] + zero);
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(values)));
  }

  [[gnu::always_inline]] __m256i plane(int step, int index, int half) const {
    return load_bytes(codes_ + size(step) * kFormat.step_bytes() + size(64 * index + 32 * half));
  }

  [[gnu::always_inline]] __m256i stored_codes(int step, int v, int half) const {
    constexpr int kBits = kFormat.code_bits;
    if constexpr (kBits == 8) {
      return plane(step, v, half);
    } else if constexpr (kBits >= 4) {
      const __m256i low = moved_bits(plane(step, v % 4, half), v < 4 ? 0 : -4, 0x0f);
      if constexpr (kBits == 4) return low;
      const __m256i high = kBits == 5
                               ? moved_bits(plane(step, 4, half), 4 - v, 0x10)
                               : moved_bits(plane(step, 4 + v / 4, half), 4 - 2 * (v % 4), 0x30);
      return _mm256_or_si256(low, high);
    } else {
      const __m256i low = moved_bits(plane(step, v / 4, half), -2 * (v % 4), 0x03);
      if constexpr (kBits == 2) return low;
      return _mm256_or_si256(low, moved_bits(plane(step, 2, half), 2 - v, 0x04));
    }
  }

  const std::byte* codes_;
  const std::byte* scales_;
  const std::byte* mins_;
  const std::byte* zeros_;
  __m256 d_[2] = {};
  __m256 dmin_[2] = {};
};

// The same taken apart, for several rows of activations. Members as in PackedBlock.
class ExpandedBlock {
 public:
  template <DType kType>
  [[gnu::noinline]] void fill(const std::byte* panel, int k, int block, int steps) {
    const PackedBlock<kType> packed(panel, k, block);
    constexpr int kGroupsPerStep = PackedBlock<kType>::kKind.groups_per_step();
    for (int step = 0; step < steps; ++step) {
      GLINT_UNROLL
      for (int v = 0; v < 8; ++v) {
        for (int half = 0; half < 2; ++half) {
          _mm256_store_si256(reinterpret_cast<__m256i*>(codes_[step][v][half]),
                             packed.codes(step, v, half));
        }
      }
      for (int group = step * kGroupsPerStep; group < (step + 1) * kGroupsPerStep; ++group) {
        for (int half = 0; half < 2; ++half) {
          _mm256_store_ps(scales_[group][half], packed.scale(group, half));
          if constexpr (PackedBlock<kType>::kFormat.has_min)
            _mm256_store_ps(mins_[group][half], packed.minimum(group, half));
          if constexpr (PackedBlock<kType>::kFormat.has_zeros)
            _mm256_store_ps(zeros_[group][half], packed.zero(group, half));
        }
      }
    }
  }

  __m256i codes(int step, int v, int half) const { return load_bytes(codes_[step][v][half]); }
  __m256 scale(int group, int half) const { return _mm256_load_ps(scales_[group][half]); }
  __m256 minimum(int group, int half) const { return _mm256_load_ps(mins_[group][half]); }
  __m256 zero(int group, int half) const { return _mm256_load_ps(zeros_[group][half]); }

 private:
  alignas(64) std::byte codes_[kBlockSteps][8][2][32];
  alignas(64) float scales_[kInt8Block / 16][2][8];
  alignas(64) float mins_[kInt8Block / 16][2][8];
  alignas(64) float zeros_[kInt8Block / 16][2][8];
};

}  // namespace
}  // namespace glint
