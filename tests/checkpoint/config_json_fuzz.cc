// config.json and its siblings on any bytes: the parser stays inside them, and what it accepts
// survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/json_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace glint;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // The looser limits of requests too: there duplicate keys are folded instead of refused.
  for (const JsonLimits& limits : {kConfigLimits, JsonLimits{}}) {
    const auto value = parse_json(text, limits);
    if (!value) {
      GLINT_CHECK(!value.error().message.empty() && value.error().message.size() < 2000);
      continue;
    }
    for (const int indent : {0, 2}) {
      const auto again = parse_json(value->dump(indent), limits);
      GLINT_CHECK(again.has_value() && *again == *value);
    }
  }
  const auto object = parse_json_object(text, "config.json");
  GLINT_CHECK(!object.has_value() || object->is_object());
  return 0;
}
