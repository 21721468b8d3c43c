// The scalar table: the definition that the other tables are tested against, written to be read.
#pragma once

namespace glint {

struct KernelTable;
const KernelTable& scalar_table();

}  // namespace glint
