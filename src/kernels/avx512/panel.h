// Low-bit weights in the tables for AVX-512.
#pragma once

namespace glint {

struct KernelTable;
// Fills in int8, panel_f32, and what they need for every block type. A processor without VNNI keeps
// the products of the AVX2 table.
void fill_avx512_panels(KernelTable& table);

}  // namespace glint
