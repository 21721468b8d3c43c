// The code books spread out, an element a byte, when the program is compiled.
#include <array>

#include "tensor/ggml_blocks.h"

namespace glint {
namespace {

#include "tensor/ggml_grids.inc"

template <typename Element, std::size_t kEntries, std::size_t kWidth>
struct Grid {
  Element entries[kEntries][kWidth];
};

template <std::size_t kWidth, typename Element, std::size_t kEntries, std::size_t kValues>
constexpr auto spread(const std::uint16_t (&packed)[kEntries], unsigned bits,
                      const std::array<Element, kValues>& values) {
  Grid<Element, kEntries, kWidth> grid{};
  for (std::size_t entry = 0; entry < kEntries; ++entry) {
    for (std::size_t i = 0; i < kWidth; ++i)
      grid.entries[entry][i] = values[(packed[entry] >> (bits * i)) & ((1u << bits) - 1)];
  }
  return grid;
}

constexpr std::array<std::uint8_t, 3> kValues2 = {8, 25, 43};
constexpr std::array<std::uint8_t, 8> kValues3Xxs = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr std::array<std::uint8_t, 8> kValues3S = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr std::array<std::int8_t, 3> kValues1 = {-1, 0, 1};

constexpr auto kGrid2Xxs = spread<8>(kIq2Xxs, 2, kValues2);
constexpr auto kGrid2Xs = spread<8>(kIq2Xs, 2, kValues2);
constexpr auto kGrid2S = spread<8>(kIq2S, 2, kValues2);
constexpr auto kGrid3Xxs = spread<4>(kIq3Xxs, 3, kValues3Xxs);
constexpr auto kGrid3S = spread<4>(kIq3S, 3, kValues3S);
constexpr auto kGrid1 = spread<8>(kIq1, 2, kValues1);

}  // namespace

std::span<const std::uint8_t[8]> iq2_xxs_grid() {
  return kGrid2Xxs.entries;
}
std::span<const std::uint8_t[8]> iq2_xs_grid() {
  return kGrid2Xs.entries;
}
std::span<const std::uint8_t[8]> iq2_s_grid() {
  return kGrid2S.entries;
}
std::span<const std::uint8_t[4]> iq3_xxs_grid() {
  return kGrid3Xxs.entries;
}
std::span<const std::uint8_t[4]> iq3_s_grid() {
  return kGrid3S.entries;
}
std::span<const std::int8_t[8]> iq1_grid() {
  return kGrid1.entries;
}

}  // namespace glint
