// Parsed chat templates with what the chat side has to know about them.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/result.h"
#include "chat/messages.h"
#include "text/chat_template.h"

namespace glint {

struct ParsedTemplate {
  std::unique_ptr<ChatTemplate> chat_template;
  ArgumentStyle argument_style = ArgumentStyle::kObject;
};

// Finds out how the template takes a call's arguments by rendering one both ways. `model_type`
// decides when neither way renders. Errors: those of ChatTemplate::parse().
Result<std::shared_ptr<const ParsedTemplate>> parse_template(std::string_view source,
                                                             std::string_view name,
                                                             std::string_view model_type);

// Templates that came with requests: the last few, parsed. Safe from any thread.
class TemplateCache {
 public:
  // Errors: kInvalidArgument "chat_template: ...".
  Result<std::shared_ptr<const ParsedTemplate>> get(const std::string& source);

 private:
  struct Entry {
    std::string source;
    std::shared_ptr<const ParsedTemplate> parsed;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

}  // namespace glint
