#include "text/tool_call_writer.h"

#include <utility>

#include "text/json_text.h"

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

std::string ToolCallWriter::opening() {
  std::string text = std::exchange(first_argument_, false) ? "{" : ", ";
  append_json_string(text, key_);
  return text + ": ";
}

void ToolCallWriter::begin_call(std::string_view name, std::string_view id) {
  name_ = name;
  first_argument_ = true;
  append_event(events_, Kind::kToolBegin, name_, begun_++);
  events_.back().id = id;
}

void ToolCallWriter::begin_argument(std::string_view key, ArgumentForm form) {
  key_ = key;
  value_.clear();
  form_ = form;
  types_ = form == ArgumentForm::kText ? JsonTypes(JsonTypes::kString)
                                       : argument_types(tools_, name_, key_);
  if (writes_text()) append_json(opening() + '"');
}

void ToolCallWriter::append_value(std::string_view text) {
  if (!writes_text()) {
    value_ += text;
    return;
  }
  std::string quoted;
  append_json_string(quoted, text);
  append_json(std::string_view(quoted).substr(1, quoted.size() - 2));
}

void ToolCallWriter::end_argument() {
  if (writes_text()) {
    append_json("\"");
  } else {
    append_json(opening() + value_as_json());
  }
}

std::string ToolCallWriter::value_as_json() const {
  if (form_ == ArgumentForm::kJson) {
    if (auto value = read_json_text(value_, JsonDialect::kStrict)) return std::move(value->text);
  }
  return argument_to_json(value_, types_);
}

void ToolCallWriter::append_json(std::string_view json) {
  append_event(events_, Kind::kToolArgs, json, begun_ - 1);
}

void ToolCallWriter::end_call() {
  end_json_call(first_argument_ ? "{}" : "}");
}

void ToolCallWriter::end_json_call(std::string_view rest) {
  append_json(rest);
  append_event(events_, Kind::kToolEnd, "", begun_ - 1);
  ++complete_;
}

}  // namespace glint
