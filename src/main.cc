// The program `glint`.
#include <cstdio>
#include <string>
#include <vector>

#include "tools/commands.h"
#include "tools/program.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int code = glint::run_program(
      {
          glint::chat_command(),
          glint::run_command(),
          glint::serve_command(),
          glint::inspect_command(),
          glint::bench_command(),
          glint::score_command(),
          glint::quantize_command(),
          glint::tokenize_command(),
      },
      arguments);
  // A full disk or a closed pipe shows when the last bytes go out.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return glint::complain("the output could not be written", glint::kExitFailed);
}
