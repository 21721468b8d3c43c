// The demo checkpoint's files as embedded in the program. Bytes only; demo_model.h unpacks them.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace glint {

struct EmbeddedFile {
  std::string_view name;
  std::span<const std::byte> bytes;
};

// Valid for the life of the program.
std::span<const EmbeddedFile> demo_files();

}  // namespace glint
