#include "text/tool_call_writer.h"

#include <utility>

namespace glint {

using Kind = OutputEvent::Kind;

void append_event(std::vector<OutputEvent>& events, Kind kind, std::string_view text,
                  int tool_index) {
  const bool joins = kind != Kind::kToolBegin && kind != Kind::kToolEnd;
  if (joins && text.empty()) return;
  if (joins && !events.empty() && events.back().kind == kind &&
      events.back().tool_index == tool_index) {
    events.back().text += text;
  } else {
    events.push_back({kind, std::string(text), tool_index});
  }
}

ToolCallWriter::ToolCallWriter(Json tools, std::vector<OutputEvent>& events)
    : tools_(std::move(tools)), events_(events) {}

void ToolCallWriter::write(std::string_view json) {
  append_event(events_, Kind::kToolArgs, json, begun_ - 1);
}

std::string ToolCallWriter::opening() {
  std::string text = std::exchange(first_argument_, false) ? "{" : ", ";
  append_json_string(text, key_);
  return text + ": ";
}

void ToolCallWriter::begin_call(std::string_view name) {
  name_ = name;
  first_argument_ = true;
  append_event(events_, Kind::kToolBegin, name_, begun_++);
}

void ToolCallWriter::begin_argument(std::string_view key) {
  key_ = key;
  value_.clear();
  types_ = argument_types(tools_, name_, key_);
  if (types_.only_string()) write(opening() + '"');
}

void ToolCallWriter::append_value(std::string_view text) {
  if (!types_.only_string()) {
    value_ += text;
    return;
  }
  std::string quoted;
  append_json_string(quoted, text);
  write(std::string_view(quoted).substr(1, quoted.size() - 2));
}

void ToolCallWriter::end_argument() {
  if (types_.only_string()) {
    write("\"");
  } else {
    write(opening() + argument_to_json(value_, types_));
  }
}

void ToolCallWriter::end_call() {
  write(first_argument_ ? "{}" : "}");
  append_event(events_, Kind::kToolEnd, "", begun_ - 1);
  ++complete_;
}

}  // namespace glint
