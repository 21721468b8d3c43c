// Attention of query rows over one span of keys. Included inside a target region. F is the format
// of queries and keys, G that of values (formats-inl.h); a key row is to a query what a weight row
// is to an activation.
//
// A tile of query rows shares each key and value row that is read. Keys that only some rows of a
// tile see are added row by row, so that what a row does not see never meets it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/formats-inl.h"
#include "kernels/math-inl.h"
#include "kernels/table.h"

namespace glint {
namespace {

constexpr int kPageKeys = 64;

template <typename F, typename G>
struct Attend {
  using V = typename F::Vec;
  using Reg = typename V::Reg;
  using Packed = typename F::Packed;
  static constexpr int kTileRows = V::kTileRows;

  static std::size_t query_bytes(int dk) {
    return kTileRows * static_cast<std::size_t>(round_up(dk, F::kStep)) * sizeof(Packed);
  }

  static std::size_t scratch_bytes(int, int dk, int) noexcept {
    return kTileRows * kAttendSpan * sizeof(float) + query_bytes(dk);
  }

  static void attend(const AttendArgs& a) noexcept {
    for (int row = 0; row < a.rows;) {
      const int rows = next_rows(a.rows - row, kTileRows);
      with_rows<Tile, kTileRows>(rows, a, row);
      row += rows;
    }
  }

  template <int R>
  struct Tile {
    static void run(const AttendArgs& a, int row) {
      float* weights = reinterpret_cast<float*>(a.scratch);  // [R, kAttendSpan]
      auto* q = reinterpret_cast<Packed*>(a.scratch + kTileRows * kAttendSpan * sizeof(float));
      const std::size_t q_stride = static_cast<std::size_t>(round_up(a.dk, F::kStep));
      int visible[R];
      int most = 0;
      for (int r = 0; r < R; ++r) {
        visible[r] = a.visible[row + r] < a.num_keys ? a.visible[row + r] : a.num_keys;
        most = visible[r] > most ? visible[r] : most;
        pack_query(static_cast<const std::byte*>(a.q) +
                       static_cast<std::size_t>(row + r) * a.q_stride * sizeof(typename F::Stored),
                   a.dk, q + static_cast<std::size_t>(r) * q_stride);
      }
      scores<R>(a, q, q_stride, most, weights);
      for (int r = 0; r < R; ++r) {
        softmax_part(weights + r * kAttendSpan, a.first_key, visible[r], a.scale, a.max + row + r,
                     a.sum + row + r);
      }
      float* out = a.out + static_cast<std::size_t>(row) * a.out_stride;
      int i = 0;
      for (; i + kChunk <= a.dv; i += kChunk)
        weigh_values<R, kChunkSteps>(a, weights, visible, i, kChunk, out + i);
      for (; i < a.dv; i += G::kStep) weigh_values<R, 1>(a, weights, visible, i, a.dv - i, out + i);
    }
  };

  static void pack_query(const std::byte* from, int dk, Packed* to) {
    constexpr std::size_t kStepBytes = F::kStep * sizeof(typename F::Stored);
    int i = 0;
    for (; i + F::kStep <= dk; i += F::kStep, from += kStepBytes, to += F::kStep)
      pack_step(from, to);
    if (i == dk) return;
    alignas(64) std::byte padded[kStepBytes] = {};
    std::memcpy(padded, from, static_cast<std::size_t>(dk - i) * sizeof(typename F::Stored));
    pack_step(padded, to);
  }

  static void pack_step(const std::byte* from, Packed* to) {
    GLINT_UNROLL
    for (int vector = 0; vector < F::kVectors; ++vector)
      F::store_packed(to, vector, F::load_stored(from, vector));
  }

  template <int R>
  static void scores(const AttendArgs& a, const Packed* q, std::size_t q_stride, int keys,
                     float* out) {
    int key = 0;
    for (; key + 4 <= keys; key += 4) {
      products<F, R, 4>(q, q_stride, row_of(a.k_pages, a.k_stride, key), a.k_stride, a.dk,
                        out + key, kAttendSpan);
    }
    for (; key < keys; ++key) {
      products<F, R, 1>(q, q_stride, row_of(a.k_pages, a.k_stride, key), a.k_stride, a.dk,
                        out + key, kAttendSpan);
    }
  }

  static const std::byte* row_of(const std::byte* const* pages, std::size_t stride, int key) {
    return pages[key / kPageKeys] + static_cast<std::size_t>(key % kPageKeys) * stride;
  }

  // Turns scores [first, keys) into e^(scale score - max), with zeros before them and up to a whole
  // register.
  static void softmax_part(float* scores, int first, int keys, float scale, float* max,
                           float* sum) {
    *max = -kInfinity;
    *sum = 0;
    if (keys <= first) return;
    const Reg factor = V::set1(scale);
    for (int i = 0; i < keys; i += V::kLanes)
      V::store(scores + i, V::mul(V::load(scores + i), factor));
    for (int i = 0; i < first; ++i) scores[i] = -kInfinity;
    for (int i = keys; i % V::kLanes != 0; ++i) scores[i] = -kInfinity;
    Reg maxima = V::set1(-kInfinity);
    for (int i = 0; i < keys; i += V::kLanes) maxima = V::max(V::load(scores + i), maxima);
    *max = max_of<V>(maxima);
    const Reg shift = V::set1(*max);
    Reg sums = V::zero();
    for (int i = 0; i < keys; i += V::kLanes) {
      const Reg e = exp<V>(V::sub(V::load(scores + i), shift));
      V::store(scores + i, e);
      sums = V::add(sums, e);
    }
    *sum = sum_of<V>(sums);
  }

  static constexpr int kChunkSteps = 4 / G::kVectors;
  static constexpr int kChunk = kChunkSteps * G::kStep;

  // out[r][0, width) = sum over keys of weights[r][key] times elements [first, first + width) of
  // the key's value.
  template <int R, int S>
  static void weigh_values(const AttendArgs& a, const float* weights, const int* visible, int first,
                           int width, float* out) {
    constexpr int kRowFloats = S * G::kVectors * V::kLanes;
    alignas(64) float sums[R * kRowFloats] = {};
    int common = visible[0];
    for (int r = 1; r < R; ++r) common = visible[r] < common ? visible[r] : common;
    common = common < a.first_key ? a.first_key : common;
    add_values<R, S>(a, weights, a.first_key, common, first, width, sums);
    for (int r = 0; r < R; ++r) {
      float* row_sums = sums + r * kRowFloats;
      if (visible[r] > common) {
        add_values<1, S>(a, weights + r * kAttendSpan, common, visible[r], first, width, row_sums);
      }
      alignas(64) float ordered[S * G::kStep];
      for (int step = 0; step < S; ++step) {
        Reg registers[G::kVectors];
        for (int i = 0; i < G::kVectors; ++i)
          registers[i] = V::load(row_sums + (step * G::kVectors + i) * V::kLanes);
        G::store_in_order(registers, ordered + step * G::kStep);
      }
      const int count = width < S * G::kStep ? width : S * G::kStep;
      std::memcpy(out + static_cast<std::size_t>(r) * a.out_stride, ordered,
                  static_cast<std::size_t>(count) * sizeof(float));
    }
  }

  // Adds keys [begin, end) in order to `kept`, S steps as registers for each of R rows.
  template <int R, int S>
  [[gnu::noinline]] static void add_values(const AttendArgs& a, const float* weights, int begin,
                                           int end, int first, int width, float* kept) {
    constexpr int kRegisters = S * G::kVectors;
    constexpr std::size_t kStepBytes = G::kStep * sizeof(typename G::Stored);
    Reg sums[R][kRegisters];
    GLINT_UNROLL
    for (int r = 0; r < R; ++r) {
      GLINT_UNROLL
      for (int i = 0; i < kRegisters; ++i)
        sums[r][i] = V::load(kept + (r * kRegisters + i) * V::kLanes);
    }
    alignas(64) std::byte padded[kStepBytes] = {};
    for (int key = begin; key < end;) {
      const int page_end = (key / kPageKeys + 1) * kPageKeys;
      const int stop = page_end < end ? page_end : end;
      const std::byte* v = row_of(a.v_pages, a.v_stride, key) +
                           static_cast<std::size_t>(first) * sizeof(typename G::Stored);
      for (; key < stop; ++key, v += a.v_stride) {
        const std::byte* from = v;
        if (S == 1 && width < G::kStep) {
          std::memcpy(padded, v, static_cast<std::size_t>(width) * sizeof(typename G::Stored));
          from = padded;
        }
        Reg weight[R];
        GLINT_UNROLL
        for (int r = 0; r < R; ++r) weight[r] = V::set1(weights[r * kAttendSpan + key]);
        GLINT_UNROLL
        for (int i = 0; i < kRegisters; ++i) {
          const Reg value = G::load_stored(
              from + static_cast<std::size_t>(i / G::kVectors) * kStepBytes, i % G::kVectors);
          GLINT_UNROLL
          for (int r = 0; r < R; ++r) sums[r][i] = G::multiply_add(weight[r], value, sums[r][i]);
        }
      }
    }
    GLINT_UNROLL
    for (int r = 0; r < R; ++r) {
      GLINT_UNROLL
      for (int i = 0; i < kRegisters; ++i)
        V::store(kept + (r * kRegisters + i) * V::kLanes, sums[r][i]);
    }
  }

  static AttendKernels kernels() { return {attend, scratch_bytes}; }
};

}  // namespace
}  // namespace glint
