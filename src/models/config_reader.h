// Reads a family's hyper-parameters out of config.json so that nothing is overlooked: every key is
// read, listed as inert, or refused by name. Errors collect; the first one is reported.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace glint {

class ConfigReader {
 public:
  // `config` must outlive the reader and be an object. `where` names it in errors ("config.json").
  ConfigReader(const Json& config, std::string where);

  // A required integer in [low, high]. After an error every read returns low, so that the caller
  // need not check each.
  int integer(std::string_view key, int low, int high);
  // The same, `fallback` when the key is absent or null (only where the format defines one).
  int integer_or(std::string_view key, int fallback, int low, int high);
  double number(std::string_view key, double low, double high);
  double number_or(std::string_view key, double fallback, double low, double high);
  bool boolean(std::string_view key);
  bool boolean_or(std::string_view key, bool fallback);
  std::string text_or(std::string_view key, std::string_view fallback);
  // The raw value, or nullptr when absent or null. Marks the key as read.
  const Json* value(std::string_view key);

  // The key may be absent, null, or equal to what is implemented; anything else is refused as
  // unsupported.
  void expect(std::string_view key, const Json& implemented, std::string_view why);
  void fail(Error error);
  // Keys that change nothing in inference.
  void ignore(std::initializer_list<std::string_view> keys);
  // Keys that every transformers config may carry without meaning for inference.
  void ignore_common();

  // The first error, or kUnsupported naming all keys that nobody read.
  Status finish() const;

 private:
  bool present(std::string_view key);  // reports a missing key

  const Json& config_;
  std::string where_;
  std::set<std::string, std::less<>> seen_;
  std::optional<Error> error_;
};

// RoPE settings in either spelling: rope_theta (+ rope_scaling), or rope_parameters.
struct RopeConfig {
  double theta = 0;
  std::string type;                  // "default", "yarn", ...
  double partial_rotary_factor = 1;  // the share of a head's width that is rotated
};
// Reads and marks all rope keys; scaling other than "default" is refused by name, and so is a
// partial rotation.
RopeConfig read_plain_rope(ConfigReader& reader);
// The same for families that rotate a part of each head, `fallback` of it where no key says more.
RopeConfig read_partial_rope(ConfigReader& reader, double fallback);

}  // namespace glint
