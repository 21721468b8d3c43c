// Every family's config on any JSON: it is described or refused with a message, quickly, and the
// tensor check that follows holds as well.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/json_file.h"
#include "models/registry.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace glint;
  auto config = parse_json_object({reinterpret_cast<const char*>(data), size}, "config.json");
  if (!config) return 0;
  const auto checkpoint = Checkpoint::of_config(std::move(*config));
  const auto info = describe_model(*checkpoint);
  if (!info) {
    GLINT_CHECK(!info.error().message.empty());
    return 0;
  }
  GLINT_CHECK(info->cache.bf16.bytes_per_token() > 0 && info->total_parameters > 0);
  GLINT_CHECK(info->active_parameters <= info->total_parameters);
  GLINT_CHECK(!check_model(*checkpoint).has_value());  // there are no tensors
  return 0;
}
