// GBNF from a request: translated or refused, and what was translated is UTF-8.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "text/grammar.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 16384) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto lark = glint::gbnf_to_lark(text);
  if (lark.has_value() && !glint::is_utf8(*lark)) std::abort();
  return 0;
}
