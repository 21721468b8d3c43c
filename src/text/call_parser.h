// How one family writes tool calls, as OutputParser reads it: what lies between the marker that
// opens calls and their end. A parser gets text, and markers by their place in markers().
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "text/output_format.h"
#include "text/tool_call_writer.h"

namespace glint {

class CallParser {
 public:
  enum class Step {
    kInside,   // the markup goes on
    kOver,     // it ended with what was taken: content follows
    kNotACall  // it turned out to be text: given_back() is content, and so is what was not taken
  };
  // Stands in markers() for joining_token().
  static constexpr char kJoiningByte = '\xFF';

  virtual ~CallParser() = default;
  virtual std::span<const std::string_view> markers() const = 0;
  // A token that is part of every marker, while the rest of them is ordinary text; else empty.
  virtual std::string_view joining_token() const { return {}; }
  virtual bool opens(int marker) const = 0;
  virtual void open(int marker) = 0;  // a marker that opens()
  // Text is always inside: only markers end calls.
  virtual void take_text(std::string_view text) = 0;
  // `text` is how the marker is written, for where it means nothing.
  virtual Step take_marker(int marker, std::string_view text) = 0;
  // The answer ends inside the markup. Calls are completed when it ended `by_stop`; otherwise they
  // stay as they are.
  virtual Step finish(bool by_stop) = 0;
  virtual std::string given_back() { return {}; }
};

// Events go to `calls`, which outlives the parser.
std::unique_ptr<CallParser> make_glm_calls(ToolCallWriter& calls);
// `format`: kDeepSeekV3, kDeepSeekV31 or kKimiK2, whose arguments are JSON.
std::unique_ptr<CallParser> make_json_calls(ToolFormat format, ToolCallWriter& calls);
std::unique_ptr<CallParser> make_dsml_calls(ToolCallWriter& calls);

}  // namespace glint
