// The demo tokenizer under the chat templates of tests/data/templates.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "script_model.h"

namespace glint {

inline std::string fixture_template(const std::string& name) {
  auto text =
      read_text_file(std::string(GLINT_TEST_DATA) + "/templates/" + name + ".jinja", 1u << 20);
  GLINT_CHECK(text.has_value());
  return *text;
}

// Text assets of the demo model with another template (a fixture's name, or its source) and
// options.
inline Result<std::shared_ptr<const TextAssets>> make_text(TextOptions options = {},
                                                           const Json& config = Json(),
                                                           TextDocuments documents = {}) {
  if (documents.tokenizer_json.empty()) {
    documents.tokenizer_json = *read_text_file(demo_folder() / "tokenizer.json", 1u << 20);
  }
  return TextAssets::from_documents(documents, config, Json(), options);
}

inline std::shared_ptr<const TextAssets> fixture_text(const std::string& name,
                                                      TextOptions options = {}) {
  options.chat_template = fixture_template(name);
  auto text = make_text(std::move(options));
  GLINT_CHECK(text.has_value());
  return *text;
}

inline Json as_json(std::string_view text) {
  auto parsed = parse_json(text);
  EXPECT_TRUE(parsed.has_value()) << text;
  return parsed ? *parsed : Json();
}

inline ChatRequest chat_of(std::string_view messages) {
  ChatRequest request;
  request.messages = as_json(messages);
  return request;
}

inline std::string rendered(const TextAssets& text, const ChatRequest& request) {
  const auto prompt = text.prepare(request);
  return prompt ? prompt->text : "error: " + prompt.error().message;
}

inline std::ptrdiff_t count_token(const TextAssets& text, const PreparedPrompt& prompt,
                                  std::string_view token) {
  return std::ranges::count(prompt.ids, text.tokenizer().token_id(token).value_or(-1));
}

}  // namespace glint
