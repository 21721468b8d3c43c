// The commands of `glint`, one file each.
#pragma once

#include "tools/flags.h"

namespace glint {

Command chat_command();
Command run_command();
Command serve_command();
Command inspect_command();
Command bench_command();
Command score_command();
Command quantize_command();
Command tokenize_command();

}  // namespace glint
