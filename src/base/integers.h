// Integer arithmetic that every folder needs.
#pragma once

namespace glint {

// a / b rounded up, and a rounded up to a multiple of b; a >= 0, b > 0.
constexpr int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}
constexpr int round_up(int a, int b) {
  return ceil_div(a, b) * b;
}

}  // namespace glint
