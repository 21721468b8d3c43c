#include "text/output_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/call_parser.h"
#include "text/json_text.h"
#include "text/phrase_finder.h"
#include "text/tool_call_writer.h"

namespace glint {
namespace {

using Kind = OutputEvent::Kind;
using Step = CallParser::Step;

// Markers in one count: those of thinking, then the call parser's.
constexpr int kThink = 0;
constexpr int kThinkEnd = 1;
constexpr int kFirstCallMarker = 2;
constexpr std::string_view kThinkText = "<think>";
constexpr std::string_view kThinkEndText = "</think>";

// A marker, and its token where the tokenizer has one. Without one it is found in the text.
struct Marker {
  std::string pattern;  // in which kJoiningByte may stand for a token
  std::string text;
  std::optional<std::int32_t> id;
  bool hidden_elsewhere = false;  // where it has no meaning it is not shown
};

void drop_leading_newlines(std::string& text) {
  text.erase(0, std::min(text.find_first_not_of("\r\n"), text.size()));
}

std::string replace_joining_byte(std::string_view text, std::string_view by) {
  std::string out;
  for (const char c : text) {
    if (c == CallParser::kJoiningByte) {
      out += by;
    } else {
      out += c;
    }
  }
  return out;
}

std::unique_ptr<CallParser> make_call_parser(ToolFormat format, ToolCallWriter& calls) {
  if (!calls.has_tools()) return nullptr;
  switch (format) {
    case ToolFormat::kNone:
      return nullptr;
    case ToolFormat::kGlm45:
    case ToolFormat::kGlm47:
      return make_glm_calls(calls);
    case ToolFormat::kDeepSeekV3:
    case ToolFormat::kDeepSeekV31:
    case ToolFormat::kKimiK2:
      return make_json_calls(format, calls);
    case ToolFormat::kDeepSeekV32:
      return make_dsml_calls(calls);
  }
  return nullptr;
}

}  // namespace

// Tokens become text and markers; each goes to where the answer stands: reasoning, content, or the
// family's call parser.
struct OutputParser::State {
  enum class Place { kReasoning, kContent, kCalls };

  State(const Tokenizer& t, Options o)
      : tokenizer(t),
        detokenizer(t),
        reads_thinking(o.reasoning_format == ReasoningFormat::kThink),
        keep_special(o.keep_special),
        calls(std::move(o.tools), events),
        call_parser(make_call_parser(o.tool_format, calls)),
        stops(std::move(o.stops)) {
    seen_reasoning = reads_thinking && o.starts_in_thinking;
    if (seen_reasoning) place = Place::kReasoning;
    find_markers();
  }

  const Tokenizer& tokenizer;
  Detokenizer detokenizer;
  const bool reads_thinking;
  const bool keep_special;

  std::vector<OutputEvent> events;
  ToolCallWriter calls;
  std::unique_ptr<CallParser> call_parser;  // null: markup is content
  StopMatcher stops;
  Place place = Place::kContent;

  std::vector<Marker> markers;
  std::optional<std::int32_t> joining_id;
  std::string joining_text;
  // Markers that are spelled out: in reasoning </think> is always one of them.
  std::optional<PhraseFinder> spelled_in_reasoning;
  std::optional<PhraseFinder> spelled_elsewhere;

  bool seen_reasoning = false;
  int reasoning_tokens = 0;
  std::string reasoning;  // all that was shown of it

  bool content_shown = false;
  bool segment_blank = true;  // no text since the start, or since the last call
  std::string held_space;     // of a blank segment

  // --- markers ---

  void find_markers() {
    markers.push_back(marker_of(kThinkText));
    markers.push_back(marker_of(kThinkEndText));
    for (Marker& marker : markers) marker.hidden_elsewhere = false;
    if (call_parser) {
      joining_text = call_parser->joining_token();
      joining_id = added_token(tokenizer, joining_text);
      for (const std::string_view text : call_parser->markers()) {
        markers.push_back(marker_of(text));
      }
    }
    std::vector<std::string> spelled;
    for (const Marker& marker : markers) spelled.push_back(marker.id ? "" : marker.pattern);
    if (!reads_thinking) spelled[kThink] = spelled[kThinkEnd] = "";
    spelled_elsewhere.emplace(spelled);
    spelled[kThinkEnd] = kThinkEndText;
    spelled_in_reasoning.emplace(spelled);
  }

  Marker marker_of(std::string_view pattern) const {
    Marker marker;
    marker.text = replace_joining_byte(pattern, joining_text);
    marker.pattern = joining_id ? pattern : marker.text;
    marker.id = added_token(tokenizer, marker.text);
    marker.hidden_elsewhere = marker.id && tokenizer.is_special(*marker.id) && !keep_special;
    return marker;
  }

  int marker_with(std::int32_t id) const {
    const auto found = std::ranges::find(markers, std::optional(id), &Marker::id);
    return found == markers.end() ? -1 : static_cast<int>(found - markers.begin());
  }

  PhraseFinder& spelled_markers() {
    return place == Place::kReasoning ? *spelled_in_reasoning : *spelled_elsewhere;
  }

  // --- tokens ---

  void push(std::int32_t id) {
    const int marker = marker_with(id);
    if (place == Place::kReasoning && marker != kThinkEnd) ++reasoning_tokens;
    if (marker >= 0) {
      flush_text();
      if (!stops.matched()) take_marker(marker);
    } else if (joining_id == id) {
      take_spelling(detokenizer.finish());
      take_spelling(std::string_view(&CallParser::kJoiningByte, 1));
    } else if (keep_special || !tokenizer.is_special(id)) {
      take_spelling(detokenizer.push(id));
    }
  }

  // Text in which markers may be spelled.
  void take_spelling(std::string_view text) {
    while (!text.empty() && !stops.matched()) {
      std::string shown;
      const auto found = spelled_markers().push(text, shown);
      take_text(shown);
      if (!found) return;
      text.remove_prefix(found->used);
      if (!stops.matched()) take_marker(static_cast<int>(found->phrase));
    }
  }

  void flush_text() {
    take_spelling(detokenizer.finish());
    take_text(spelled_markers().finish());
  }

  void take_text(std::string_view text) {
    if (text.empty() || stops.matched()) return;
    std::string replaced;
    if (joining_id && text.find(CallParser::kJoiningByte) != std::string_view::npos) {
      replaced = replace_joining_byte(text, joining_text);
      text = replaced;
    }
    if (place == Place::kReasoning) {
      show_reasoning(text);
    } else if (place == Place::kContent) {
      take_content(text);
    } else {
      call_parser->take_text(text);
    }
  }

  void take_marker(int marker) {
    switch (place) {
      case Place::kReasoning:
        return reasoning_marker(marker);
      case Place::kContent:
        return content_marker(marker);
      case Place::kCalls:
        return call_marker(marker);
    }
  }

  // --- reasoning ---

  void show_reasoning(std::string_view text) {
    reasoning += text;
    append_event(events, Kind::kReasoning, text);
  }

  void reasoning_marker(int marker) {
    if (marker == kThinkEnd) {
      place = Place::kContent;
      return;
    }
    if (opens_calls(marker)) {
      place = Place::kContent;
      return begin_calls(marker);
    }
    // A model may open what the prompt has opened already.
    if (marker == kThink && reasoning.empty()) return;
    show_marker(marker);
  }

  // The model ended without closing its reasoning: what it said may be the answer.
  void repeat_as_content() {
    if (trim_ascii(reasoning).empty()) return;
    std::string text = reasoning;
    drop_leading_newlines(text);
    append_event(events, Kind::kContent, text);
  }

  // --- content ---

  void content_marker(int marker) {
    if (opens_calls(marker)) return begin_calls(marker);
    const bool at_start = !seen_reasoning && !content_shown && segment_blank && calls.begun() == 0;
    if (at_start && reads_thinking && marker < kFirstCallMarker) {
      seen_reasoning = true;
      held_space.clear();
      if (marker == kThink) place = Place::kReasoning;
      return;
    }
    show_marker(marker);
  }

  // A marker without a meaning is text.
  void show_marker(int marker) {
    if (!markers[marker].hidden_elsewhere) take_text(markers[marker].text);
  }

  void show_content(std::string_view text) {
    content_shown = content_shown || !text.empty();
    append_event(events, Kind::kContent, stops.push(text));
  }

  // Whitespace that opens the answer, or stands alone beside a call, is held until text follows it.
  void take_content(std::string_view text) {
    if (!segment_blank) return show_content(text);
    held_space += text;
    if (trim_ascii(text).empty()) return;
    segment_blank = false;
    if (!content_shown) drop_leading_newlines(held_space);
    show_content(std::exchange(held_space, {}));
  }

  void end_segment() {
    append_event(events, Kind::kContent, stops.finish());
    held_space.clear();
    segment_blank = true;
  }

  void finish_content() {
    if (segment_blank && !content_shown && calls.begun() == 0) {
      drop_leading_newlines(held_space);
      show_content(std::exchange(held_space, {}));
    }
    end_segment();
  }

  // --- calls ---

  bool opens_calls(int marker) const {
    return marker >= kFirstCallMarker && call_parser->opens(marker - kFirstCallMarker);
  }

  void begin_calls(int marker) {
    end_segment();
    place = Place::kCalls;
    call_parser->open(marker - kFirstCallMarker);
  }

  void call_marker(int marker) {
    const std::string_view text = markers[marker].text;
    if (marker < kFirstCallMarker) return call_parser->take_text(text);
    switch (call_parser->take_marker(marker - kFirstCallMarker, text)) {
      case Step::kInside:
        return;
      case Step::kOver:
        place = Place::kContent;
        return;
      case Step::kNotACall:
        place = Place::kContent;
        take_content(call_parser->given_back());
        return take_content(text);
    }
  }

  // --- the end ---

  // Most of a marker that would have opened calls, had the answer not been cut.
  bool is_cut_opening(std::string_view text) const {
    return std::ranges::any_of(markers, [&](const Marker& marker) {
      return opens_calls(static_cast<int>(&marker - markers.data())) &&
             marker.pattern.starts_with(text) &&
             (text.find(CallParser::kJoiningByte) != std::string_view::npos ||
              2 * text.size() >= marker.pattern.size());
    });
  }

  void finish(bool by_stop) {
    take_spelling(detokenizer.finish());
    const std::string held = spelled_markers().finish();
    if (by_stop || place != Place::kContent || !is_cut_opening(held)) take_text(held);
    if (stops.matched()) return;
    if (place == Place::kReasoning) {
      if (by_stop) repeat_as_content();
      return;
    }
    if (place == Place::kCalls && call_parser->finish(by_stop) == Step::kNotACall) {
      take_content(call_parser->given_back());
    }
    finish_content();
  }
};

OutputParser::OutputParser(const Tokenizer& tokenizer, Options options)
    : state_(std::make_unique<State>(tokenizer, std::move(options))) {}
OutputParser::~OutputParser() = default;

std::vector<OutputEvent> OutputParser::push(std::int32_t id) {
  if (!stopped()) state_->push(id);
  return std::exchange(state_->events, {});
}

std::vector<OutputEvent> OutputParser::finish(bool by_stop) {
  if (!stopped()) state_->finish(by_stop);
  return std::exchange(state_->events, {});
}

bool OutputParser::stopped() const {
  return state_->stops.matched().has_value();
}

const std::string& OutputParser::stop_string() const {
  static const std::string kNone;
  return stopped() ? *state_->stops.matched() : kNone;
}

bool OutputParser::in_reasoning() const {
  return state_->place == State::Place::kReasoning;
}
int OutputParser::reasoning_tokens() const {
  return state_->reasoning_tokens;
}
int OutputParser::complete_tool_calls() const {
  return state_->calls.complete();
}

}  // namespace glint
