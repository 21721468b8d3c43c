#include "text/output_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/json_text.h"
#include "text/tool_call_writer.h"

namespace glint {
namespace {

enum class Marker {
  kNone,
  kThink,
  kThinkEnd,
  kToolCall,
  kToolCallEnd,
  kArgKey,
  kArgKeyEnd,
  kArgValue,
  kArgValueEnd
};

constexpr std::string_view kMarkerTexts[] = {
    "",          "<think>",    "</think>",    "<tool_call>", "</tool_call>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};

std::string_view text_of(Marker marker) {
  return kMarkerTexts[static_cast<int>(marker)];
}

using Kind = OutputEvent::Kind;

// Where the parser stands. A call runs kName, then kBetween, kKey, kBeforeValue, kValue for each
// argument.
enum class Place { kReasoning, kContent, kName, kBetween, kKey, kBeforeValue, kValue };

void drop_leading_newlines(std::string& text) {
  text.erase(0, std::min(text.find_first_not_of("\r\n"), text.size()));
}

}  // namespace

struct OutputParser::State {
  State(const Tokenizer& t, Options o)
      : tokenizer(t),
        detokenizer(t),
        calls(std::move(o.tools), events),
        stops(std::move(o.stops)),
        place(o.starts_in_thinking ? Place::kReasoning : Place::kContent),
        seen_reasoning(o.starts_in_thinking) {
    for (int i = 1; i < static_cast<int>(std::size(kMarkerTexts)); ++i) {
      const std::optional<std::int32_t> id = tokenizer.token_id(kMarkerTexts[i]);
      if (id && tokenizer.is_added(*id)) marker_ids[i] = *id;
    }
  }

  const Tokenizer& tokenizer;
  Detokenizer detokenizer;
  std::int32_t marker_ids[std::size(kMarkerTexts)] = {-1, -1, -1, -1, -1, -1, -1, -1, -1};

  std::vector<OutputEvent> events;
  ToolCallWriter calls;
  StopMatcher stops;
  Place place;

  bool seen_reasoning;
  int reasoning_tokens = 0;
  std::string reasoning;       // all that was shown of it
  std::string held_reasoning;  // could become </think>

  bool content_shown = false;
  bool segment_blank = true;  // no text since the start, or since the last call
  std::string held_space;     // of a blank segment

  std::string name;  // raw, kName
  std::string key;   // raw, kKey

  Marker marker_of(std::int32_t id) const {
    for (int i = 1; i < static_cast<int>(std::size(kMarkerTexts)); ++i) {
      if (marker_ids[i] == id && id >= 0) return static_cast<Marker>(i);
    }
    return Marker::kNone;
  }

  void emit(Kind kind, std::string_view text) { append_event(events, kind, text); }

  // --- reasoning ---

  void show_reasoning(std::string_view text) {
    reasoning += text;
    emit(Kind::kReasoning, text);
  }

  // Takes text up to a closing marker that is spelled out; returns what follows it.
  std::string_view take_reasoning(std::string_view text) {
    constexpr std::string_view kClose = kMarkerTexts[static_cast<int>(Marker::kThinkEnd)];
    const std::size_t had = held_reasoning.size();
    held_reasoning += text;
    if (const std::size_t found = held_reasoning.find(kClose); found != std::string::npos) {
      const std::size_t used = found + kClose.size() - had;
      held_reasoning.resize(found);
      end_reasoning();
      return text.substr(used);
    }
    std::size_t held = std::min(kClose.size() - 1, held_reasoning.size());
    while (!held_reasoning.ends_with(kClose.substr(0, held))) --held;
    const std::size_t shown = held_reasoning.size() - held;
    show_reasoning(std::string_view(held_reasoning).substr(0, shown));
    held_reasoning.erase(0, shown);
    return {};
  }

  void end_reasoning() {
    show_reasoning(std::exchange(held_reasoning, {}));
    place = Place::kContent;
  }

  // --- content ---

  void show_content(std::string_view text) {
    content_shown = content_shown || !text.empty();
    emit(Kind::kContent, stops.push(text));
  }

  // Whitespace that opens the answer, or stands alone beside a call, is held until text follows it.
  void take_content(std::string_view text) {
    if (!segment_blank) return show_content(text);
    held_space += text;
    if (trim_ascii(held_space).empty()) return;
    segment_blank = false;
    if (!content_shown) drop_leading_newlines(held_space);
    show_content(std::exchange(held_space, {}));
  }

  void end_segment() {
    emit(Kind::kContent, stops.finish());
    held_space.clear();
    segment_blank = true;
  }

  // --- calls ---

  void begin_name() {
    end_segment();
    name.clear();
    place = Place::kName;
  }

  std::string_view take_name(std::string_view text) {
    std::size_t end = 0;
    if (trim_ascii(name).empty()) {  // newlines before the name do not end it
      end = std::min(text.find_first_not_of(" \t\r\n\f\v"), text.size());
    }
    end = text.find('\n', end);
    if (end == std::string_view::npos) {
      name += text;
      return {};
    }
    name += text.substr(0, end);
    end_name();
    return text.substr(end + 1);
  }

  // False when there is no name: then the markup was not a call.
  bool end_name() {
    const std::string_view trimmed = trim_ascii(name);
    if (trimmed.empty()) {
      place = Place::kContent;
      take_content(std::string(text_of(Marker::kToolCall)) + name);
      return false;
    }
    calls.begin_call(trimmed);
    place = Place::kBetween;
    return true;
  }

  void begin_key() {
    key.clear();
    place = Place::kKey;
  }

  void begin_value() {
    calls.begin_argument(trim_ascii(key));
    place = Place::kValue;
  }

  void end_value() {
    calls.end_argument();
    place = Place::kBetween;
  }

  void end_call() {
    if (place == Place::kValue) end_value();
    calls.end_call();
    place = Place::kContent;
  }

  // --- the two kinds of input ---

  void take_text(std::string_view text) {
    while (!text.empty() && !stops.matched()) {
      switch (place) {
        case Place::kReasoning:
          text = take_reasoning(text);
          continue;
        case Place::kName:
          text = take_name(text);
          continue;
        case Place::kContent:
          take_content(text);
          return;
        case Place::kKey:
          key += text;
          return;
        case Place::kValue:
          calls.append_value(text);
          return;
        case Place::kBetween:
        case Place::kBeforeValue:
          return;  // nothing has a meaning here
      }
    }
  }

  void take_marker(Marker marker) {
    switch (place) {
      case Place::kReasoning:
        return reasoning_marker(marker);
      case Place::kContent:
        return content_marker(marker);
      case Place::kName:
        return name_marker(marker);
      default:
        return argument_marker(marker);
    }
  }

  void reasoning_marker(Marker marker) {
    if (marker == Marker::kThinkEnd) return end_reasoning();
    if (marker == Marker::kToolCall && calls.has_tools()) {
      end_reasoning();
      return begin_name();
    }
    // A model may open what the prompt has opened already.
    if (marker == Marker::kThink && reasoning.empty() && trim_ascii(held_reasoning).empty()) return;
    take_text(text_of(marker));
  }

  void content_marker(Marker marker) {
    if (marker == Marker::kToolCall && calls.has_tools()) return begin_name();
    const bool at_start = !seen_reasoning && !content_shown && segment_blank && calls.begun() == 0;
    if (at_start && (marker == Marker::kThink || marker == Marker::kThinkEnd)) {
      seen_reasoning = true;
      held_space.clear();
      if (marker == Marker::kThink) place = Place::kReasoning;
      return;
    }
    take_text(text_of(marker));
  }

  void name_marker(Marker marker) {
    switch (marker) {
      case Marker::kArgKey:
      case Marker::kToolCallEnd:
        if (!end_name()) return take_text(text_of(marker));
        return argument_marker(marker);
      case Marker::kToolCall:
        if (trim_ascii(name).empty()) return;
        end_name();
        end_call();
        return begin_name();
      default:
        name += text_of(marker);
    }
  }

  void argument_marker(Marker marker) {
    const bool in_value = place == Place::kValue;
    switch (marker) {
      case Marker::kToolCallEnd:
        return end_call();
      case Marker::kArgKey:
        if (in_value) end_value();
        return begin_key();
      case Marker::kArgKeyEnd:
        if (place != Place::kKey) break;
        place = Place::kBeforeValue;
        return;
      case Marker::kArgValue:  // its key may have gone without an end
        if (place == Place::kKey || place == Place::kBeforeValue) return begin_value();
        break;
      case Marker::kArgValueEnd:
        if (in_value) return end_value();
        break;
      case Marker::kToolCall:
        if (place != Place::kBetween) break;
        end_call();
        return begin_name();
      default:
        break;
    }
    take_text(text_of(marker));
  }

  // --- the end ---

  void finish(bool by_stop) {
    take_text(detokenizer.finish());
    switch (place) {
      case Place::kReasoning:
        show_reasoning(std::exchange(held_reasoning, {}));
        if (by_stop) repeat_as_content();
        return;
      case Place::kContent:
        return finish_content();
      case Place::kName:
        if (!by_stop || !end_name()) return finish_content();
        return end_call();
      default:
        if (by_stop) end_call();
    }
  }

  // The model ended without closing its reasoning: what it said may be the answer.
  void repeat_as_content() {
    if (trim_ascii(reasoning).empty()) return;
    std::string text = reasoning;
    drop_leading_newlines(text);
    emit(Kind::kContent, text);
  }

  void finish_content() {
    if (segment_blank && !content_shown && calls.begun() == 0) {
      drop_leading_newlines(held_space);
      show_content(std::exchange(held_space, {}));
    }
    end_segment();
  }
};

OutputParser::OutputParser(const Tokenizer& tokenizer, Options options)
    : state_(std::make_unique<State>(tokenizer, std::move(options))) {}
OutputParser::~OutputParser() = default;

std::vector<OutputEvent> OutputParser::push(std::int32_t id) {
  State& s = *state_;
  if (s.stops.matched()) return {};
  const Marker marker = s.marker_of(id);
  if (s.place == Place::kReasoning && marker != Marker::kThinkEnd) ++s.reasoning_tokens;
  if (marker != Marker::kNone) {
    s.take_text(s.detokenizer.finish());
    if (!s.stops.matched()) s.take_marker(marker);
  } else if (!s.tokenizer.is_special(id)) {
    s.take_text(s.detokenizer.push(id));
  }
  return std::exchange(s.events, {});
}

std::vector<OutputEvent> OutputParser::finish(bool by_stop) {
  State& s = *state_;
  if (!s.stops.matched()) s.finish(by_stop);
  return std::exchange(s.events, {});
}

bool OutputParser::stopped() const {
  return state_->stops.matched().has_value();
}

const std::string& OutputParser::stop_string() const {
  static const std::string kNone;
  return stopped() ? *state_->stops.matched() : kNone;
}

bool OutputParser::in_reasoning() const {
  return state_->place == Place::kReasoning;
}
int OutputParser::reasoning_tokens() const {
  return state_->reasoning_tokens;
}
int OutputParser::complete_tool_calls() const {
  return state_->calls.complete();
}

}  // namespace glint
