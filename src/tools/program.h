// `glint`: picks the command, reads its options, runs it.
#pragma once

#include <string>
#include <vector>

#include "tools/flags.h"

namespace glint {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitRefused = 3;
inline constexpr int kExitInterrupted = 130;

// The exit code. Help and version go to stdout, complaints to stderr.
int run_program(const std::vector<Command>& commands, const std::vector<std::string>& arguments);

// "glint: MESSAGE" on stderr; returns `code`.
int complain(std::string_view message, int code);

std::string_view version();
// Of the source, abbreviated; empty when it was no git checkout.
std::string_view commit();

}  // namespace glint
