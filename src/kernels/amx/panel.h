// Low-bit weights in the table for AMX.
#pragma once

namespace glint {

// With fewer rows a tile of sixteen costs more than VNNI, which gives the same bits.
inline constexpr int kFewTileRows = 12;

struct KernelTable;
// Replaces the int8 products of the AVX-512 table.
void fill_amx_panels(KernelTable& table);

}  // namespace glint
