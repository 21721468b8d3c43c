// Marks a region of a source file whose functions are compiled for one instruction set. Everything
// a file includes comes before the region (the shared *-inl.h bodies excepted), and all code in it
// is in an unnamed namespace, so that no function compiled for a newer processor can replace a
// shared inline one at link time.
#pragma once

#define GLINT_STRINGIZE(...) #__VA_ARGS__

#if defined(__clang__)
#define GLINT_TARGET_PRAGMA(text) \
  _Pragma(GLINT_STRINGIZE(clang attribute push(__attribute__((target(text))), apply_to = function)))
#define GLINT_TARGET_BEGIN(text) GLINT_TARGET_PRAGMA(text)
#define GLINT_TARGET_END _Pragma("clang attribute pop")
#define GLINT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GLINT_TARGET_PRAGMA(text) _Pragma(GLINT_STRINGIZE(GCC target(text)))
#define GLINT_TARGET_BEGIN(text) _Pragma("GCC push_options") GLINT_TARGET_PRAGMA(text)
#define GLINT_TARGET_END _Pragma("GCC pop_options")
// Loops with a small constant count over arrays that must live in registers.
#define GLINT_UNROLL _Pragma("GCC unroll 16")
#endif
