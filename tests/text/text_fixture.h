// What the text tests share: the demo model's tokenizer, and JSON files of cases.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

namespace glint {

inline std::string read_source_file(const std::string& relative) {
  auto text = read_text_file(std::string(GLINT_SOURCE_DIR) + "/" + relative, 64u << 20);
  EXPECT_TRUE(text.has_value()) << relative;
  return text.has_value() ? std::move(*text) : std::string();
}

inline Json read_test_json(const std::string& name) {
  auto json = parse_json(read_source_file("tests/data/" + name));
  EXPECT_TRUE(json.has_value()) << name << ": " << json.error().message;
  return json.has_value() ? std::move(*json) : Json();
}

// Loaded once: the tokenizer is immutable.
inline const Tokenizer& demo_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto loaded =
        Tokenizer::from_json(read_source_file("models/demo/tokenizer.json"), "tokenizer.json");
    EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
    return std::move(*loaded);
  }();
  return *tokenizer;
}

}  // namespace glint
