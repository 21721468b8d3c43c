// What becomes of the products of a matrix: over a vector type V, included inside a target region.
#pragma once

#include <cstddef>

#include "kernels/math-inl.h"
#include "kernels/table.h"

namespace glint {
namespace {

// Writes products [n, n + columns) of one row where the arguments want them.
template <typename V>
void write_products(const MatmulArgs& a, int row, int n, int columns, const float* values) {
  using Reg = typename V::Reg;
  float* y = a.y + static_cast<std::size_t>(a.y_rows ? a.y_rows[row] : row) * a.y_stride + n;
  const Reg factor = V::set1(a.factor);
  const Reg scale = V::set1(a.row_scale ? a.row_scale[row] : 1.0f);
  for (int c = 0; c < columns; c += V::kLanes) {
    const int lanes = columns - c < V::kLanes ? columns - c : V::kLanes;
    Reg value = V::mul(V::mul(V::load_first(values + c, lanes), factor), scale);
    if (a.accumulate) value = V::add(V::load_first(y + c, lanes), value);
    V::store_first(y + c, lanes, value);
  }
}

// gate = silu(gate) * up, bounded, where both are products still without their factors.
template <typename V>
void gate_values(const GateUpArgs& a, float* gate, const float* up, int columns) {
  const typename V::Reg gate_factor = V::set1(a.gate_factor), up_factor = V::set1(a.up_factor);
  const typename V::Reg limit = V::set1(a.limit);
  for (int c = 0; c < columns; c += V::kLanes) {
    const int lanes = columns - c < V::kLanes ? columns - c : V::kLanes;
    const typename V::Reg value = gated<V>(V::mul(V::load_first(gate + c, lanes), gate_factor),
                                           V::mul(V::load_first(up + c, lanes), up_factor), limit);
    V::store_first(gate + c, lanes, value);
  }
}

}  // namespace
}  // namespace glint
