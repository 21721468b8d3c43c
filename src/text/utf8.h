// Bytes to valid UTF-8, all at once or as they arrive.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace glint {

// Appends `bytes` to `out` with every invalid sequence (maximal subpart) as one U+FFFD. A sequence
// that is cut off at the end is left alone unless `final`. Returns how many bytes were consumed:
// all of them, or all but at most 3.
std::size_t append_utf8(std::string& out, std::string_view bytes, bool final);

}  // namespace glint
