// The tile configuration of the running thread: one for all sources that use tiles.
#pragma once

#include <cstdint>

namespace glint {

// How much of K a product takes, in bytes of a row of A: 64 of bfloat16, or a group of int8. Tiles
// 0 to 3 are results and always 16 rows of 64 bytes; 4 and 5 are the A side, 16 rows of k bytes; 6
// and 7 the B side, k / 4 rows of 64 bytes.
enum class TileShape : std::uint8_t { kNone = 0, k16 = 16, k32 = 32, k64 = 64 };

inline constinit thread_local TileShape configured_tile_shape = TileShape::kNone;

}  // namespace glint
