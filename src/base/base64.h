// Base64 as RFC 4648 has it, padded.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace glint {

std::string base64_encode(std::string_view bytes);
// Nothing when `text` is not what base64_encode() writes.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace glint
