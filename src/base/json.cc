#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"

namespace glint {
namespace {

// Destruction, dump and comparison recurse once per level; this keeps them inside any thread's
// stack.
constexpr int kMaxDepthAnyCallerMayAsk = 4096;
// Below this many members comparing all pairs of keys is cheaper than sorting them.
constexpr std::size_t kSmallObject = 16;

// Folds duplicate keys as Python does: the first position, the last value. False when one was found
// and `refuse`.
bool fold_duplicates(Json::Object& members, bool refuse) {
  std::vector<bool> dropped;
  const auto fold = [&](std::size_t first, std::size_t later) {
    if (dropped.empty()) dropped.resize(members.size());
    members[first].second = std::move(members[later].second);
    dropped[later] = true;
  };
  if (members.size() <= kSmallObject) {
    for (std::size_t later = 1; later < members.size(); ++later) {
      for (std::size_t first = 0; first < later; ++first) {
        if (members[first].first != members[later].first) continue;
        if (refuse) return false;
        fold(first, later);
        break;
      }
    }
  } else {
    // Sorted rather than hashed: a client that knows the hash could choose keys that all collide.
    std::vector<std::size_t> order(members.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const int compared = members[a].first.compare(members[b].first);
      return compared < 0 || (compared == 0 && a < b);
    });
    for (std::size_t first = 0, i = 1; i < order.size(); ++i) {
      if (members[order[first]].first != members[order[i]].first) {
        first = i;
        continue;
      }
      if (refuse) return false;
      fold(order[first], order[i]);
    }
  }
  if (dropped.empty()) return true;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (dropped[i]) continue;
    if (kept != i) members[kept] = std::move(members[i]);
    ++kept;
  }
  members.resize(kept);
  return true;
}

// Receives nlohmann's events; its parser keeps its own stack, so nesting costs heap and never call
// depth.
class Builder {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() { return add(Json()); }
  bool boolean(bool v) { return add(Json(v)); }
  bool number_integer(std::int64_t v) { return add(Json(v)); }
  bool number_unsigned(std::uint64_t v) { return add(Json(v)); }
  bool number_float(double v, const std::string&) { return add(Json(v)); }
  bool string(std::string& v) { return add(Json(std::move(v))); }
  bool binary(std::vector<std::uint8_t>&) { return fail("binary values are not JSON"); }
  bool start_object(std::size_t) { return open(Json(Json::Object{})); }
  bool start_array(std::size_t) { return open(Json(Json::Array{})); }
  bool key(std::string& v) {
    stack_.back().keys.push_back(std::move(v));
    return true;
  }
  bool end_object() {
    if (!fold_duplicates(stack_.back().value.as_object(), limits_.refuse_duplicate_keys)) {
      return fail("an object has the same key twice: " +
                  duplicate_key(stack_.back().value.as_object()));
    }
    return close();
  }
  bool end_array() { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) {
    std::string_view what = e.what();
    // nlohmann quotes all it read of the broken token, which may be megabytes, and prefixes its own
    // error id.
    if (const auto cut = what.find("; last read"); cut != std::string_view::npos)
      what = what.substr(0, cut);
    if (const auto cut = what.find("] "); cut != std::string_view::npos)
      what = what.substr(cut + 2);
    if (const auto cut = what.find(": ");
        what.starts_with("parse error") && cut != std::string_view::npos) {
      what = what.substr(cut + 2);
    }
    return fail(fmt::format("byte {}: {}", position, what.substr(0, 300)));
  }

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  struct Frame {
    Json value;
    std::vector<std::string> keys;  // at most one: the key that waits for its value
  };

  static std::string duplicate_key(const Json::Object& members) {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const auto& [name, value] : members) keys.push_back(name);
    std::sort(keys.begin(), keys.end());
    const auto twin = std::adjacent_find(keys.begin(), keys.end());
    std::string quoted;
    append_json_string(quoted, twin == keys.end() ? "" : twin->substr(0, 200));
    return quoted;
  }
  bool fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }
  bool open(Json container) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) {
      return fail(fmt::format("nested deeper than {} levels", limits_.max_depth));
    }
    stack_.push_back({std::move(container), {}});
    return true;
  }
  bool close() {
    Json done = std::move(stack_.back().value);
    stack_.pop_back();
    return add(std::move(done));
  }
  bool add(Json value) {
    if (++num_values_ > limits_.max_values) {
      return fail(fmt::format("more than {} values", limits_.max_values));
    }
    if (stack_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Frame& top = stack_.back();
    if (top.value.is_array()) {
      top.value.as_array().push_back(std::move(value));
    } else {
      top.value.as_object().emplace_back(std::move(top.keys.back()), std::move(value));
      top.keys.pop_back();
    }
    return true;
  }

  const JsonLimits& limits_;
  std::vector<Frame> stack_;
  Json root_;
  std::string error_;
  std::size_t num_values_ = 0;
};

// Length of the well-formed UTF-8 sequence at the front of `text` (RFC 3629), or 0; then `bad` is
// how many bytes one U+FFFD replaces (the longest prefix that could have started a sequence, at
// least 1).
std::size_t utf8_sequence(std::string_view text, std::size_t& bad) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  bad = 1;
  if (lead < 0x80) return 1;
  std::size_t length = 0;
  unsigned low = 0x80;
  unsigned high = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= text.size() || byte(i) < low || byte(i) > high) {
      bad = i;
      return 0;
    }
    low = 0x80;
    high = 0xbf;
  }
  return length;
}

// As Python's repr: shortest digits that read back the same, an exponent only below 1e-4 or from
// 1e16 on, and always a mark that it is no integer. Non-finite values, which JSON lacks, become
// null.
void append_double(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char buffer[64];
  const double size = std::fabs(value);
  const bool scientific = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, value,
                    scientific ? std::chars_format::scientific : std::chars_format::fixed);
  GLINT_CHECK(error == std::errc());
  const std::string_view digits(buffer, static_cast<std::size_t>(end - buffer));
  out += digits;
  if (!scientific && digits.find('.') == std::string_view::npos) out += ".0";
}

void append_break(std::string& out, int indent, int level) {
  if (indent <= 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(level), ' ');
}

void append_json(std::string& out, const Json& value, int indent, int level) {
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_int()) {
    out += std::to_string(value.as_int());
  } else if (value.is_uint64()) {
    out += std::to_string(value.as_uint64());
  } else if (value.is_double()) {
    append_double(out, value.as_double());
  } else if (value.is_string()) {
    append_json_string(out, value.as_string());
  } else if (value.is_array()) {
    out += '[';
    bool first = true;
    for (const Json& element : value.as_array()) {
      if (!first) out += ',';
      first = false;
      append_break(out, indent, level + 1);
      append_json(out, element, indent, level + 1);
    }
    if (!first) append_break(out, indent, level);
    out += ']';
  } else {
    out += '{';
    bool first = true;
    for (const auto& [key, member] : value.as_object()) {
      if (!first) out += ',';
      first = false;
      append_break(out, indent, level + 1);
      append_json_string(out, key);
      out += indent > 0 ? ": " : ":";
      append_json(out, member, indent, level + 1);
    }
    if (!first) append_break(out, indent, level);
    out += '}';
  }
}

template <typename T, typename Variant>
auto& get_checked(Variant& value) {
  auto* held = std::get_if<T>(&value);
  GLINT_CHECK(held != nullptr);
  return *held;
}

}  // namespace

Json::Json(std::uint64_t v) {
  if (v <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    value_ = static_cast<std::int64_t>(v);
  } else {
    value_ = v;
  }
}

const char* Json::type_name() const {
  static constexpr const char* kNames[] = {"null",   "boolean", "integer", "integer",
                                           "number", "string",  "array",   "object"};
  return kNames[value_.index()];
}

bool Json::as_bool() const {
  return get_checked<bool>(value_);
}
std::int64_t Json::as_int() const {
  return get_checked<std::int64_t>(value_);
}
std::uint64_t Json::as_uint64() const {
  return get_checked<std::uint64_t>(value_);
}
double Json::as_double() const {
  if (is_int()) return static_cast<double>(as_int());
  if (is_uint64()) return static_cast<double>(as_uint64());
  return get_checked<double>(value_);
}
const std::string& Json::as_string() const {
  return get_checked<std::string>(value_);
}
const Json::Array& Json::as_array() const {
  return get_checked<Array>(value_);
}
Json::Array& Json::as_array() {
  return get_checked<Array>(value_);
}
const Json::Object& Json::as_object() const {
  return get_checked<Object>(value_);
}
Json::Object& Json::as_object() {
  return get_checked<Object>(value_);
}

const Json* Json::find(std::string_view key) const {
  const auto* object = std::get_if<Object>(&value_);
  if (object == nullptr) return nullptr;
  const auto found = std::find_if(object->rbegin(), object->rend(),
                                  [&](const Member& m) { return m.first == key; });
  return found == object->rend() ? nullptr : &found->second;
}

Json* Json::find(std::string_view key) {
  return const_cast<Json*>(std::as_const(*this).find(key));
}

Json& Json::set(std::string key, Json value) {
  if (is_null()) value_ = Object{};
  Object& object = as_object();
  if (Json* present = find(key)) {
    *present = std::move(value);
    return *present;
  }
  object.emplace_back(std::move(key), std::move(value));
  return object.back().second;
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(value));
}

std::string Json::dump(int indent) const {
  std::string out;
  append_json(out, *this, indent, 0);
  return out;
}

bool operator==(const Json& a, const Json& b) {
  return a.value_ == b.value_;
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  GLINT_CHECK(limits.max_depth <= kMaxDepthAnyCallerMayAsk);
  if (text.size() > limits.max_bytes) {
    return invalid_argument(fmt::format("JSON of {} bytes is larger than the limit of {} bytes",
                                        text.size(), limits.max_bytes));
  }
  // nlohmann takes a NUL for the end of input and would accept whatever follows it.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    return invalid_argument(fmt::format("malformed JSON: byte {}: NUL byte", nul + 1));
  }
  Builder builder(limits);
  try {
    if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
    return invalid_argument("malformed JSON: " + builder.error());
  } catch (const std::exception& e) {
    return exhausted(fmt::format("cannot hold a JSON text of {} bytes: {}", text.size(), e.what()));
  }
}

bool is_utf8(std::string_view text) {
  std::size_t bad = 0;
  while (!text.empty()) {
    const std::size_t length = utf8_sequence(text, bad);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text.front());
    std::size_t bad = 1;
    std::size_t length = 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (c < 0x20) {
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
          break;
        }
        length = utf8_sequence(text, bad);
        if (length == 0) {
          out += "\xef\xbf\xbd";
          length = bad;
        } else {
          out += text.substr(0, length);
        }
    }
    text.remove_prefix(length);
  }
  out += '"';
}

}  // namespace glint
