// Low-bit weights of the AVX2 table.
#pragma once

namespace glint {

struct KernelTable;
// Fills in int8, panel_f32, and what they need for every block type.
void fill_avx2_panels(KernelTable& table);

}  // namespace glint
