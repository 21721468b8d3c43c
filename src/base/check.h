// GLINT_CHECK aborts with a location on a programmer's mistake, never on input. GLINT_DCHECK is the
// same in debug builds only, for kernels and loops.
#pragma once

namespace glint {
[[noreturn]] void check_failed(const char* file, int line, const char* expression) noexcept;
}  // namespace glint

#define GLINT_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::glint::check_failed(__FILE__, __LINE__, #condition))

#ifdef NDEBUG
#define GLINT_DCHECK(condition) void(0)
#else
#define GLINT_DCHECK(condition) GLINT_CHECK(condition)
#endif
