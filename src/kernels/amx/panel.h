// Low-bit weights in the table for AMX.
#pragma once

namespace glint {

struct KernelTable;
// Replaces the int8 products of the AVX-512 table.
void fill_amx_panels(KernelTable& table);

}  // namespace glint
