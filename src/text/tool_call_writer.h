// The calls of one answer as events: names, arguments as JSON text, ends. Knows no markup.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/output_parser.h"
#include "text/tool_arguments.h"

namespace glint {

// Appends an event; text of the same kind as the last event's joins it, and no text is no event.
void append_event(std::vector<OutputEvent>& events, OutputEvent::Kind kind, std::string_view text,
                  int tool_index = -1);

// What markup says about an argument's value.
enum class ArgumentForm {
  kBySchema,  // nothing
  kText,
  kJson  // as far as it is
};

class ToolCallWriter {
 public:
  // `tools`: see OutputParser::Options. Events go to `events`, which outlives the writer.
  ToolCallWriter(Json tools, std::vector<OutputEvent>& events);

  bool has_tools() const { return tools_.is_array() && !tools_.as_array().empty(); }
  int begun() const { return begun_; }
  int complete() const { return complete_; }

  void begin_call(std::string_view name, std::string_view id = {});
  // Arguments one by one ...
  void begin_argument(std::string_view key, ArgumentForm form = ArgumentForm::kBySchema);
  // Text arguments are written as they grow; anything else needs its end before its type is known.
  void append_value(std::string_view text);
  void end_argument();
  void end_call();  // no argument is open
  // ... or as the text of one JSON object.
  void append_json(std::string_view json);
  void end_json_call(std::string_view rest);

 private:
  // Text is written as it comes.
  bool writes_text() const { return types_.only_string() && form_ != ArgumentForm::kJson; }
  std::string opening();
  std::string value_as_json() const;

  const Json tools_;
  std::vector<OutputEvent>& events_;
  int begun_ = 0;
  int complete_ = 0;
  std::string name_;
  std::string key_;
  std::string value_;
  JsonTypes types_ = JsonTypes::unknown();
  ArgumentForm form_ = ArgumentForm::kBySchema;
  bool first_argument_ = true;
};

}  // namespace glint
