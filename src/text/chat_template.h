// A checkpoint's own Jinja chat template, rendered by the `minijinja` crate with what transformers
// gives templates, and bounded in instructions, output and recursion. No file, process or network
// access exists. Safe from any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace glint {

class ChatTemplate {
 public:
  // Errors: kCorrupt with line and column when the template does not parse.
  static Result<std::unique_ptr<ChatTemplate>> parse(std::string_view source,
                                                     std::string_view name);
  ~ChatTemplate();
  // `variables` is an object: messages, tools, add_generation_prompt, bos_token, enable_thinking,
  // ... Absent keys stay undefined. Errors: kInvalidArgument with the template's message
  // (raise_exception, a limit, a type error).
  Result<std::string> render(const Json& variables) const;
  const std::string& source() const;

 private:
  ChatTemplate();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glint
