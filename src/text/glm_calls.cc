// GLM-4.5 and later: <tool_call>NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> for
// each argument, </tool_call>. Space between them has no meaning, so both layouts read alike.
#include <algorithm>
#include <utility>

#include "text/call_parser.h"
#include "text/json_text.h"

namespace glint {
namespace {

enum Marker { kCall, kCallEnd, kKey, kKeyEnd, kValue, kValueEnd };
constexpr std::string_view kMarkers[] = {"<tool_call>", "</tool_call>", "<arg_key>",
                                         "</arg_key>",  "<arg_value>",  "</arg_value>"};

class GlmCalls : public CallParser {
 public:
  explicit GlmCalls(ToolCallWriter& calls) : calls_(calls) {}

  std::span<const std::string_view> markers() const override { return kMarkers; }
  bool opens(int marker) const override { return marker == kCall; }
  void open(int) override {
    name_.clear();
    name_blank_ = true;
    place_ = Place::kInName;
  }

  void take_text(std::string_view text) override {
    if (place_ == Place::kInName) return take_name(text);
    if (place_ == Place::kInKey) key_ += text;
    if (place_ == Place::kInValue) calls_.append_value(text);
  }

  Step take_marker(int marker, std::string_view text) override {
    return place_ == Place::kInName ? name_marker(marker, text) : argument_marker(marker, text);
  }

  Step finish(bool by_stop) override {
    if (!by_stop) return Step::kInside;
    if (place_ == Place::kInName && !end_name()) return Step::kNotACall;
    return end_call();
  }

  std::string given_back() override { return std::string(kMarkers[kCall]) + name_; }

 private:
  enum class Place { kInName, kBetween, kInKey, kBeforeValue, kInValue };

  void take_name(std::string_view text) {
    std::size_t end = 0;
    if (name_blank_) {  // newlines before the name do not end it
      end = std::min(text.find_first_not_of(" \t\r\n\f\v"), text.size());
      name_blank_ = end == text.size();
    }
    end = text.find('\n', end);
    name_ += text.substr(0, end);
    if (end != std::string_view::npos) end_name();
  }

  // False when there is no name: then the markup was not a call.
  bool end_name() {
    const std::string_view name = trim_ascii(name_);
    if (name.empty()) return false;
    calls_.begin_call(name);
    place_ = Place::kBetween;
    return true;
  }

  Step name_marker(int marker, std::string_view text) {
    switch (marker) {
      case kKey:
      case kCallEnd:
        return end_name() ? argument_marker(marker, text) : Step::kNotACall;
      case kCall:  // the call before it has no end
        if (!name_blank_ && end_name()) end_call();
        open(kCall);
        return Step::kInside;
      default:
        name_blank_ = false;
        name_ += text;
        return Step::kInside;
    }
  }

  Step argument_marker(int marker, std::string_view text) {
    const bool in_value = place_ == Place::kInValue;
    switch (marker) {
      case kCallEnd:
        return end_call();
      case kKey:
        if (in_value) calls_.end_argument();
        key_.clear();
        place_ = Place::kInKey;
        return Step::kInside;
      case kKeyEnd:
        if (place_ != Place::kInKey) break;
        place_ = Place::kBeforeValue;
        return Step::kInside;
      case kValue:  // its key may have gone without an end
        if (place_ != Place::kInKey && place_ != Place::kBeforeValue) break;
        calls_.begin_argument(trim_ascii(key_));
        place_ = Place::kInValue;
        return Step::kInside;
      case kValueEnd:
        if (!in_value) break;
        calls_.end_argument();
        place_ = Place::kBetween;
        return Step::kInside;
      case kCall:
        if (place_ != Place::kBetween) break;
        end_call();
        open(kCall);
        return Step::kInside;
    }
    take_text(text);
    return Step::kInside;
  }

  Step end_call() {
    if (place_ == Place::kInValue) calls_.end_argument();
    calls_.end_call();
    return Step::kOver;
  }

  ToolCallWriter& calls_;
  Place place_ = Place::kInName;
  std::string name_;  // raw
  bool name_blank_ = true;
  std::string key_;  // raw
};

}  // namespace

std::unique_ptr<CallParser> make_glm_calls(ToolCallWriter& calls) {
  return std::make_unique<GlmCalls>(calls);
}

}  // namespace glint
