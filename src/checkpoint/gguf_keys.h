// The ARCH.* keys of a GGUF file, read so that none is overlooked: what nobody asked for and is not
// declared to be without effect is refused by name. The first complaint is kept; reading goes on.
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
#include "checkpoint/gguf.h"

namespace glint {

class GgufKeys {
 public:
  // `per_layer`: where a number is asked for, an array that says the same of every layer will do.
  GgufKeys(const GgufFile& file, std::string_view architecture, bool per_layer = false);

  // `key` is without the architecture. Integers are from 0 to 2^31 - 1; 0 after a complaint.
  std::int64_t integer(std::string_view key);
  std::optional<std::int64_t> integer_if(std::string_view key);
  // As the shortest decimal that is the same float32: converters write what config.json says so.
  double number(std::string_view key);
  std::optional<double> number_if(std::string_view key);
  std::optional<bool> boolean_if(std::string_view key);
  std::optional<std::string_view> string_if(std::string_view key);
  // An item per layer, flags as 0 and 1; empty when absent.
  std::vector<std::int64_t> integers_if(std::string_view key);
  bool has(std::string_view key) const;

  // The keys change nothing, whatever they say.
  void ignore(std::initializer_list<std::string_view> keys);
  // A value that is there must be this one.
  void expect(std::string_view key, double only, std::string_view why);

  void fail(Error error);
  void contradiction(std::string_view key, std::string_view reason);  // kCorrupt
  void refuse(std::string_view key, std::string_view reason);         // kUnsupported
  Status finish() const;

  const GgufFile& file() const { return file_; }
  std::string file_name() const { return file_.path().string(); }

 private:
  std::string full(std::string_view key) const;
  std::string place(std::string_view key) const;
  const GgufValue* take(std::string_view key);

  const GgufFile& file_;
  std::string prefix_;  // "deepseek2."
  bool per_layer_;
  std::set<std::string, std::less<>> seen_;
  std::optional<Error> error_;
};

// The shortest decimal that is the same float32, if `value` is a float32 at all.
double nearest_decimal(double value);

// What both architectures say alike: {"eos_token_id": [...], "pad_token_id": ...}, and sampling
// defaults of general.sampling.*.
Json gguf_token_ids(const GgufFile& file);
Json gguf_generation_config(const GgufFile& file);

}  // namespace glint
