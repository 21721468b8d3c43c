#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace glint {

void check_failed(const char* file, int line, const char* expression) noexcept {
  std::fprintf(stderr, "glint: internal error at %s:%d: %s\n", file, line, expression);
  std::abort();
}

}  // namespace glint
