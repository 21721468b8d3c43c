// The program `glint`.
#include <string>
#include <vector>

#include "tools/commands.h"
#include "tools/program.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return glint::run_program(
      {
          glint::chat_command(),
          glint::run_command(),
          glint::serve_command(),
          glint::inspect_command(),
          glint::bench_command(),
          glint::score_command(),
          glint::tokenize_command(),
      },
      arguments);
}
