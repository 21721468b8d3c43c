// Builds the bytes of safetensors files, right or wrong, for the tests of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace glint {

inline std::string length_prefix(std::uint64_t length) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(length >> (8 * i) & 0xff);
  return out;
}

// A file of this header and `data_bytes` bytes 0, 1, 2, ...
inline std::string safetensors_file(std::string_view header, std::size_t data_bytes) {
  std::string out = length_prefix(header.size());
  out += header;
  for (std::size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i & 0xff);
  return out;
}

// `"NAME":{"dtype":...}`, one member of a header.
inline std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                         std::uint64_t begin, std::uint64_t end) {
  return "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) +
         "\",\"shape\":" + std::string(shape) + ",\"data_offsets\":[" + std::to_string(begin) +
         "," + std::to_string(end) + "]}";
}

// A valid file with one bf16 [2] tensor per name.
inline std::string file_with(const std::vector<std::string>& names) {
  std::string header = "{";
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i != 0) header += ",";
    header += entry(names[i], "BF16", "[2]", 4 * i, 4 * i + 4);
  }
  return safetensors_file(header + "}", 4 * names.size());
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace glint
