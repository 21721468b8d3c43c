// Calls whose arguments are JSON text, in a section of their own:
//   DeepSeek V3    CALL function SEPARATOR NAME, a ```json block, CALL_END
//   DeepSeek V3.1  CALL NAME SEPARATOR JSON CALL_END
//   Kimi K2        CALL functions.NAME:INDEX SEPARATOR JSON CALL_END
// The JSON is passed on as it comes. A call without a usable header is left out, and so is text
// between calls. Behind Kimi's calls nothing counts but further calls.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/call_parser.h"
#include "text/json_stream.h"
#include "text/json_text.h"

namespace glint {
namespace {

enum Marker { kSection, kSectionEnd, kCall, kSeparator, kCallEnd };
constexpr std::string_view kDeepSeekMarkers[] = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                                                 "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                                                 "<｜tool▁call▁end｜>"};
constexpr std::string_view kKimiMarkers[] = {"<|tool_calls_section_begin|>",
                                             "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                                             "<|tool_call_argument_begin|>", "<|tool_call_end|>"};

// NAME of a Kimi header; empty when it is none.
std::string_view kimi_name(std::string_view header) {
  const std::size_t colon = header.rfind(':');
  if (colon == std::string_view::npos) return {};
  const std::string_view index = header.substr(colon + 1);
  if (index.empty() || index.find_first_not_of("0123456789") != std::string_view::npos) return {};
  header = header.substr(0, colon);
  constexpr std::string_view kPrefix = "functions.";
  if (header.starts_with(kPrefix)) header.remove_prefix(kPrefix.size());
  return trim_ascii(header);
}

class JsonCalls : public CallParser {
 public:
  JsonCalls(ToolFormat format, ToolCallWriter& calls) : format_(format), calls_(calls) {}

  std::span<const std::string_view> markers() const override {
    if (format_ == ToolFormat::kKimiK2) return kKimiMarkers;
    return kDeepSeekMarkers;
  }
  bool opens(int marker) const override { return marker == kSection || marker == kCall; }
  void open(int marker) override {
    in_section_ = marker == kSection;
    place_ = Place::kBetween;
    if (marker == kCall) begin_header();
  }

  void take_text(std::string_view text) override {
    if (place_ == Place::kHeader) header_ += text;
    if (place_ == Place::kName) text = take_name(text);
    if (place_ == Place::kFence) text = take_fence(text);
    if (place_ != Place::kArguments) return;
    const std::string json = json_.push(text);
    arguments_shown_ = arguments_shown_ || !json.empty();
    calls_.append_json(json);
  }

  Step take_marker(int marker, std::string_view text) override {
    // Of the markers, only the ends of calls count inside a string of the arguments.
    const bool quoted = place_ == Place::kArguments && json_.in_string();
    switch (marker) {
      case kSection:
        if (quoted) break;
        end_call();
        in_section_ = true;
        return Step::kInside;
      case kCall:
        if (quoted) break;
        end_call();
        begin_header();
        return Step::kInside;
      case kSeparator:
        if (quoted) break;
        if (place_ == Place::kHeader) end_header();
        return Step::kInside;
      case kCallEnd:
        end_call();
        return in_section_ ? Step::kInside : section_over();
      case kSectionEnd:
        end_call();
        in_section_ = false;
        return section_over();
    }
    take_text(text);
    return Step::kInside;
  }

  Step finish(bool by_stop) override {
    if (by_stop) end_call();
    return Step::kInside;
  }

 private:
  enum class Place {
    kBetween,
    kHeader,
    kName,   // V3: behind the separator, up to the end of the line
    kFence,  // V3: up to the JSON, ``` and the rest of its line left out
    kArguments,
    kSkipped  // of a call that has no usable header
  };

  Step section_over() const { return format_ == ToolFormat::kKimiK2 ? Step::kInside : Step::kOver; }

  void begin_header() {
    header_.clear();
    fence_open_ = false;
    place_ = Place::kHeader;
  }

  void end_header() {
    if (format_ == ToolFormat::kDeepSeekV3) {
      header_.clear();
      place_ = Place::kName;
    } else {
      const std::string_view header = trim_ascii(header_);
      if (format_ == ToolFormat::kKimiK2) return begin_call(kimi_name(header), header);
      begin_call(header, {});
    }
  }

  std::string_view take_name(std::string_view text) {
    std::size_t end = 0;
    if (header_.empty()) {  // newlines before the name do not end it
      end = text.find_first_not_of(" \t\r\n");
      if (end == std::string_view::npos) return {};
      text.remove_prefix(end);
    }
    end = text.find_first_of("\n`{");
    header_ += text.substr(0, end);
    if (end == std::string_view::npos) return {};
    begin_call(trim_ascii(header_), {});
    if (place_ == Place::kArguments) place_ = Place::kFence;
    return text.substr(end);
  }

  std::string_view take_fence(std::string_view text) {
    if (!fence_open_) {
      const std::size_t start = text.find_first_not_of(" \t\r\n");
      if (start == std::string_view::npos) return {};
      text.remove_prefix(start);
      fence_open_ = text.front() == '`';
    }
    if (fence_open_) {
      const std::size_t end = text.find_first_of("\n{");
      if (end == std::string_view::npos) return {};
      text.remove_prefix(end);
    }
    place_ = Place::kArguments;
    return text;
  }

  void begin_call(std::string_view name, std::string_view id) {
    if (name.empty()) {
      place_ = Place::kSkipped;
      return;
    }
    calls_.begin_call(name, id);
    json_ = {};
    arguments_shown_ = false;
    place_ = Place::kArguments;
  }

  void end_call() {
    if (place_ == Place::kHeader && format_ != ToolFormat::kDeepSeekV3) end_header();
    if (place_ == Place::kName) begin_call(trim_ascii(header_), {});
    if (place_ == Place::kArguments || place_ == Place::kFence) {
      const std::string end = json_.finish();
      const std::string_view rest = without_fence(end);
      calls_.end_json_call(rest.empty() && !arguments_shown_ ? "{}" : rest);
    }
    place_ = Place::kBetween;
  }

  // The end of a block whose JSON was none, so that the fence was taken for a part of it.
  std::string_view without_fence(std::string_view rest) const {
    constexpr std::string_view kFence = "```";
    std::string_view text = rest.substr(0, rest.find_last_not_of(" \t\r\n") + 1);
    if (!fence_open_ || !text.ends_with(kFence)) return text;
    text.remove_suffix(kFence.size());
    return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  }

  const ToolFormat format_;
  ToolCallWriter& calls_;
  Place place_ = Place::kBetween;
  bool in_section_ = false;
  std::string header_;  // raw; of V3 the name
  bool fence_open_ = false;
  JsonStream json_;
  bool arguments_shown_ = false;
};

}  // namespace

std::unique_ptr<CallParser> make_json_calls(ToolFormat format, ToolCallWriter& calls) {
  GLINT_CHECK(format == ToolFormat::kDeepSeekV3 || format == ToolFormat::kDeepSeekV31 ||
              format == ToolFormat::kKimiK2);
  return std::make_unique<JsonCalls>(format, calls);
}

}  // namespace glint
