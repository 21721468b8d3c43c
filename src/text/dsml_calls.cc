// DeepSeek V3.2 and V4: tags that carry the token ｜DSML｜. (@ stands for it here)
//   <@function_calls> <@invoke name="NAME">
//   <@parameter name="KEY" string="true|false">VALUE</@parameter> </@invoke> </@function_calls>
// A value is text (string="true"), JSON ("false"), or, without that attribute, what the tool's
// schema says. Text between the tags is left out.
#include <algorithm>
#include <utility>

#include "text/call_parser.h"
#include "text/json_text.h"

namespace glint {
namespace {

enum Marker {
  kSection,
  kSectionV4,
  kSectionEnd,
  kSectionEndV4,
  kInvoke,
  kInvokeEnd,
  kParameter,
  kParameterEnd
};
constexpr std::string_view kMarkers[] = {
    "<\xFF"
    "function_calls>",
    "<\xFF"
    "tool_calls>",
    "</\xFF"
    "function_calls>",
    "</\xFF"
    "tool_calls>",
    "<\xFF"
    "invoke",
    "</\xFF"
    "invoke>",
    "<\xFF"
    "parameter",
    "</\xFF"
    "parameter>"};

// The value of NAME="VALUE" among a tag's attributes; empty when there is none.
std::string_view attribute(std::string_view tag, std::string_view name) {
  while (true) {
    const std::size_t equals = tag.find("=\"");
    if (equals == std::string_view::npos) return {};
    const std::string_view found = trim_ascii(tag.substr(0, equals));
    tag.remove_prefix(equals + 2);
    const std::size_t end = std::min(tag.find('"'), tag.size());
    if (found == name) return tag.substr(0, end);
    tag.remove_prefix(std::min(end + 1, tag.size()));
  }
}

class DsmlCalls : public CallParser {
 public:
  explicit DsmlCalls(ToolCallWriter& calls) : calls_(calls) {}

  std::span<const std::string_view> markers() const override { return kMarkers; }
  std::string_view joining_token() const override { return "｜DSML｜"; }
  bool opens(int marker) const override {
    return marker == kSection || marker == kSectionV4 || marker == kInvoke;
  }
  void open(int marker) override {
    in_section_ = marker != kInvoke;
    place_ = Place::kBetween;
    if (marker == kInvoke) begin_tag(Place::kInvokeTag);
  }

  void take_text(std::string_view text) override {
    if (place_ == Place::kInvokeTag || place_ == Place::kParameterTag) text = take_tag(text);
    if (place_ == Place::kValue) calls_.append_value(text);
  }

  Step take_marker(int marker, std::string_view text) override {
    switch (marker) {
      case kInvoke:
        if (place_ == Place::kValue) break;
        end_call();
        begin_tag(Place::kInvokeTag);
        return Step::kInside;
      case kParameter:
        end_tag();
        if (place_ == Place::kValue) calls_.end_argument();
        if (call_open_) begin_tag(Place::kParameterTag);
        return Step::kInside;
      case kParameterEnd:
        end_tag();
        if (place_ == Place::kValue) calls_.end_argument();
        place_ = Place::kBetween;
        return Step::kInside;
      case kInvokeEnd:
        end_call();
        return in_section_ ? Step::kInside : Step::kOver;
      case kSectionEnd:
      case kSectionEndV4:
        end_call();
        return Step::kOver;
      case kSection:
      case kSectionV4:
        if (place_ == Place::kValue) break;
        end_call();
        in_section_ = true;
        return Step::kInside;
    }
    take_text(text);
    return Step::kInside;
  }

  Step finish(bool by_stop) override {
    if (by_stop) end_call();
    return Step::kInside;
  }

 private:
  enum class Place { kBetween, kInvokeTag, kParameterTag, kValue };

  void begin_tag(Place place) {
    tag_.clear();
    in_quotes_ = false;
    place_ = place;
  }

  // Takes attributes; returns what follows the tag.
  std::string_view take_tag(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '"') in_quotes_ = !in_quotes_;
      if (text[i] != '>' || in_quotes_) continue;
      tag_ += text.substr(0, i);
      end_tag();
      return text.substr(i + 1);
    }
    tag_ += text;
    return {};
  }

  void end_tag() {
    if (place_ == Place::kInvokeTag) {
      place_ = Place::kBetween;
      const std::string_view name = attribute(tag_, "name");
      if (name.empty()) return;
      calls_.begin_call(name);
      call_open_ = true;
    } else if (place_ == Place::kParameterTag) {
      const std::string_view form = attribute(tag_, "string");
      calls_.begin_argument(attribute(tag_, "name"), form == "true"    ? ArgumentForm::kText
                                                     : form == "false" ? ArgumentForm::kJson
                                                                       : ArgumentForm::kBySchema);
      place_ = Place::kValue;
    }
  }

  void end_call() {
    if (place_ != Place::kParameterTag) end_tag();  // an argument without a value is none
    if (place_ == Place::kValue) calls_.end_argument();
    if (std::exchange(call_open_, false)) calls_.end_call();
    place_ = Place::kBetween;
  }

  ToolCallWriter& calls_;
  Place place_ = Place::kBetween;
  bool in_section_ = false;
  bool call_open_ = false;
  std::string tag_;  // its attributes so far
  bool in_quotes_ = false;
};

}  // namespace

std::unique_ptr<CallParser> make_dsml_calls(ToolCallWriter& calls) {
  return std::make_unique<DsmlCalls>(calls);
}

}  // namespace glint
