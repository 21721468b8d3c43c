// data/engines.json inside the program. GLINT_ENGINES_FILE comes from the build and is read by the
// assembler only: no path ends up in the program.
#include <cstddef>

#include "serviceability/engine_table.h"

asm(".pushsection .rodata\n"
    "glint_engines_json:\n"
    ".incbin \"" GLINT_ENGINES_FILE
    "\"\n"
    "glint_engines_json_end:\n"
    ".byte 0\n"
    ".global glint_engines_json\n"
    ".hidden glint_engines_json\n"
    ".global glint_engines_json_end\n"
    ".hidden glint_engines_json_end\n"
    ".popsection\n");

extern "C" {
extern const char glint_engines_json[];
extern const char glint_engines_json_end[];
}

namespace glint {

std::string_view engines_json() {
  return {glint_engines_json,
          static_cast<std::size_t>(glint_engines_json_end - glint_engines_json)};
}

}  // namespace glint
