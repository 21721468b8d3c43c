// Scales of a matrix, one for each rectangle of it, as FP8 checkpoints have them.
#pragma once

#include <cstddef>

namespace glint {

// Borrows its values. The scale of (row, column) is that of its rectangle; the last ones of a row
// or column may be cut short. A scale for each row is rectangles of one row and all columns, a
// scale for the matrix is one rectangle.
struct ScaleGrid {
  const float* values = nullptr;
  int block_rows = 0, block_cols = 0;
  std::size_t stride = 0;  // values between rows of rectangles
  int first_row = 0;       // what row 0 of a slice is in the whole matrix

  // The scales of a row, one for each block_cols columns.
  const float* row(int index) const {
    return values + static_cast<std::size_t>((first_row + index) / block_rows) * stride;
  }
};

}  // namespace glint
