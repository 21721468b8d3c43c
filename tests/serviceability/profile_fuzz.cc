// Profiles of any JSON: made or refused with a message, quickly and without overflow, and then the
// table of engines answers.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/json_file.h"
#include "serviceability/engine_table.h"
#include "serviceability/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace glint;
  static const Result<EngineTable> kTable = EngineTable::built_in();
  GLINT_CHECK(kTable.has_value());
  const auto config = parse_json_object({reinterpret_cast<const char*>(data), size}, "config.json");
  if (!config) return 0;
  const auto profile = read_profile(*config);
  if (!profile) {
    GLINT_CHECK(!profile.error().message.empty());
    return 0;
  }
  GLINT_CHECK(profile->active_parameters.value() <=
              profile->total_parameters.value() + profile->hidden_size * profile->vocab_size);
  const Facts facts = facts_of(*profile, {}, {});
  GLINT_CHECK(kTable->join(facts).size() == kTable->engines().size());
  for (const CacheLayout& layout : profile->layouts) GLINT_CHECK(layout.bytes_per_token > 0);
  return 0;
}
