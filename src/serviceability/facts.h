// What a model is as named values, which the table of engines asks about, --json prints and --diff
// compares. The names are documented in docs/inspect.md; they are kept once published.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "serviceability/profile.h"

namespace glint {

// What only the files tell, beyond the config.
struct CheckpointFacts {
  std::string container;      // "config" (no weights), "safetensors", "gguf"
  bool mtp_unlisted = false;  // mtp.safetensors lies there, and the index does not name it
  bool mtp_missing = false;   // the config declares draft layers that the files lack
  std::int64_t fp8_matrices = 0, fp8_unpaired = 0;  // unpaired: without a scale beside them
  std::string fp8_example;                          // the first unpaired one
  std::string gguf_architecture;
  bool gguf_lacks_gating = false;  // experts, and no expert_gating_func
};

class Facts {
 public:
  const Json* find(std::string_view name) const;  // nullptr when there is no such fact
  void set(std::string name, Json value) {
    values_.insert_or_assign(std::move(name), std::move(value));
  }
  const std::map<std::string, Json, std::less<>>& values() const { return values_; }

 private:
  std::map<std::string, Json, std::less<>> values_;
};

// `gpu`: compute capability that --gpu names, 90 for SM90.
Facts facts_of(const ModelProfile& profile, const CheckpointFacts& files, std::optional<int> gpu);
// Every name that facts_of() may set, sorted.
const std::vector<std::string_view>& fact_names();

// 54144 -> "54,144"; 1.5 -> "1.5"; words as they are.
std::string fact_text(const Json& value);
std::string grouped_number(std::uint64_t number);
// A number that is whole as one.
Json number_json(double value);

}  // namespace glint
