#include "checkpoint/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/file.h"

namespace glint {
namespace {

using Strings = std::vector<std::string_view>;
using Integers = std::vector<std::int64_t>;

constexpr std::int64_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

// A vocabulary of ten tokens, with the marks of GLM.
GgufMetadata small_metadata() {
  GgufMetadata out;
  out["tokenizer.ggml.model"].value = GgufScalar(std::string_view("gpt2"));
  out["tokenizer.ggml.pre"].value = GgufScalar(std::string_view("glm4"));
  out["tokenizer.ggml.tokens"].value = Strings{
      "a",       "b",     "ab", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>",
      "<think>", "[PAD9]"};
  out["tokenizer.ggml.token_type"].value =
      Integers{kNormal,  kNormal,  kNormal,  kControl,     kControl,
               kControl, kControl, kControl, kUserDefined, kUnused};
  out["tokenizer.ggml.merges"].value = Strings{"a b"};
  out["tokenizer.ggml.eos_token_id"].value = GgufScalar(std::int64_t{5});
  return out;
}

using Change = std::function<void(GgufMetadata&)>;

Result<GgufTokenizer> read_changed(const Change& change) {
  GgufMetadata metadata = small_metadata();
  change(metadata);
  return read_gguf_tokenizer(metadata, "x.gguf");
}

Error error_of(const Change& change) {
  auto read = read_changed(change);
  EXPECT_FALSE(read.has_value());
  return read.has_value() ? Error{} : read.error();
}

void set_string(GgufMetadata& metadata, const char* key, std::string_view text) {
  metadata[key].value = GgufScalar(text);
}
void set_integer(GgufMetadata& metadata, const char* key, std::int64_t value) {
  metadata[key].value = GgufScalar(value);
}
Strings& strings(GgufMetadata& metadata, const char* key) {
  return std::get<Strings>(metadata.at(key).value);
}
Integers& types(GgufMetadata& metadata) {
  return std::get<Integers>(metadata.at("tokenizer.ggml.token_type").value);
}

Json parsed(const std::string& text) {
  auto json = parse_json(text);
  EXPECT_TRUE(json.has_value()) << json.error().message;
  return json.has_value() ? std::move(*json) : Json();
}

const Json& at(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  static const Json none;
  EXPECT_NE(found, nullptr) << key;
  return found != nullptr ? *found : none;
}

TEST(gguf_tokenizer, a_small_vocabulary_becomes_a_tokenizer_json) {
  const auto read = read_changed([](GgufMetadata&) {});
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_TRUE(read->notes.empty());
  const Json json = parsed(read->tokenizer_json);
  const Json& model = at(json, "model");
  EXPECT_EQ(at(model, "vocab").dump(),
            R"({"a":0,"b":1,"ab":2,"[gMASK]":3,"<sop>":4,"<|user|>":5,"<|assistant|>":6,)"
            R"("<|observation|>":7,"<think>":8})");
  EXPECT_EQ(at(model, "merges").dump(), R"([["a","b"]])");
  const Json::Array& added = at(json, "added_tokens").as_array();
  ASSERT_EQ(added.size(), 6u);
  EXPECT_EQ(at(added[0], "content").as_string(), "[gMASK]");
  EXPECT_EQ(at(added[0], "id").as_int(), 3);
  EXPECT_TRUE(at(added[0], "special").as_bool());
  EXPECT_EQ(at(added[5], "content").as_string(), "<think>");
  EXPECT_FALSE(at(added[5], "special").as_bool());
}

TEST(gguf_tokenizer, text_is_cut_as_the_demo_models_tokenizer_json_says) {
  auto file =
      read_text_file(std::string(GLINT_SOURCE_DIR) + "/models/demo/tokenizer.json", 1u << 20);
  ASSERT_TRUE(file.has_value());
  const Json demo = parsed(*file);
  for (const std::string_view pre : supported_gguf_pre_tokenizers()) {
    const auto read =
        read_changed([&](GgufMetadata& m) { set_string(m, "tokenizer.ggml.pre", pre); });
    ASSERT_TRUE(read.has_value()) << read.error().message;
    const Json json = parsed(read->tokenizer_json);
    for (const char* key : {"pre_tokenizer", "normalizer", "decoder"}) {
      EXPECT_EQ(at(json, key).dump(), at(demo, key).dump()) << key;
    }
    for (const auto& [key, value] : at(demo, "model").as_object()) {
      if (key != "vocab" && key != "merges") {
        EXPECT_EQ(at(at(json, "model"), key).dump(), value.dump()) << key;
      }
    }
  }
}

TEST(gguf_tokenizer, a_missing_pre_tokenizer_is_assumed_only_for_glms_vocabulary) {
  const auto assumed = read_changed([](GgufMetadata& m) { m.erase("tokenizer.ggml.pre"); });
  ASSERT_TRUE(assumed.has_value()) << assumed.error().message;
  ASSERT_EQ(assumed->notes.size(), 1u);
  EXPECT_NE(assumed->notes[0].find("x.gguf: tokenizer.ggml.pre is missing"), std::string::npos);
  EXPECT_EQ(assumed->tokenizer_json, read_changed([](GgufMetadata&) {})->tokenizer_json);
  // The same text as an ordinary token is no sign.
  const Error refused = error_of([](GgufMetadata& m) {
    m.erase("tokenizer.ggml.pre");
    types(m)[4] = kNormal;
  });
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.message.find("tokenizer.ggml.pre is missing"), std::string::npos);
}

TEST(gguf_tokenizer, what_is_not_known_is_refused_by_name) {
  Error error = error_of([](GgufMetadata& m) { set_string(m, "tokenizer.ggml.pre", "tekken"); });
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_NE(error.message.find("x.gguf: tokenizer.ggml.pre is \"tekken\""), std::string::npos);
  EXPECT_NE(error.message.find("it knows glm4, chatglm-bpe"), std::string::npos);
  error = error_of([](GgufMetadata& m) { set_string(m, "tokenizer.ggml.model", "llama"); });
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_NE(error.message.find("tokenizer.ggml.model is \"llama\""), std::string::npos);
  error = error_of([](GgufMetadata& m) { types(m)[2] = 6; });
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_NE(error.message.find("tokenizer.ggml.token_type[2]"), std::string::npos);
  const auto noted =
      read_changed([](GgufMetadata& m) { set_string(m, "tokenizer.ggml.news", "x"); });
  ASSERT_TRUE(noted.has_value());
  ASSERT_EQ(noted->notes.size(), 1u);
  EXPECT_NE(noted->notes[0].find("tokenizer.ggml.news"), std::string::npos);
}

TEST(gguf_tokenizer, missing_and_mistyped_keys_are_named) {
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.tokens",
                          "tokenizer.ggml.token_type", "tokenizer.ggml.merges"}) {
    const Error missing = error_of([&](GgufMetadata& m) { m.erase(key); });
    EXPECT_EQ(missing.code, ErrorCode::kCorrupt);
    EXPECT_TRUE(missing.message.starts_with(std::string("x.gguf: ") + key + " is missing"))
        << missing.message;
    EXPECT_NE(missing.message.find("convert the model again"), std::string::npos);
  }
  for (const char* key :
       {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type", "tokenizer.ggml.merges", "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.add_bos_token", "tokenizer.chat_template", "tokenizer.chat_template.x"}) {
    const Error mistyped = error_of([&](GgufMetadata& m) { m[key].value = GgufScalar(1.5); });
    EXPECT_EQ(mistyped.code, ErrorCode::kCorrupt);
    EXPECT_TRUE(mistyped.message.starts_with(std::string("x.gguf: ") + key + " must be "))
        << mistyped.message;
  }
}

TEST(gguf_tokenizer, lists_that_do_not_fit_each_other_are_refused) {
  const auto message = [](const Change& change) {
    const Error error = error_of(change);
    EXPECT_EQ(error.code, ErrorCode::kCorrupt);
    return error.message;
  };
  const char* tokens = "tokenizer.ggml.tokens";
  const char* merges = "tokenizer.ggml.merges";
  EXPECT_EQ(message([](GgufMetadata& m) { types(m).pop_back(); }),
            "x.gguf: tokenizer.ggml.token_type has 9 entries, but there are 10 tokens");
  EXPECT_EQ(message([](GgufMetadata& m) { types(m)[1] = 0; }),
            "x.gguf: tokenizer.ggml.token_type[1] is 0; token types are 1 to 6");
  EXPECT_EQ(message([](GgufMetadata& m) { types(m)[1] = 7; }),
            "x.gguf: tokenizer.ggml.token_type[1] is 7; token types are 1 to 6");
  EXPECT_EQ(message([&](GgufMetadata& m) { strings(m, tokens)[8] = "ab"; }),
            "x.gguf: tokenizer.ggml.tokens: tokens 2 and 8 are both \"ab\"");
  EXPECT_EQ(message([&](GgufMetadata& m) { strings(m, tokens)[1] = "\xff"; }),
            "x.gguf: tokenizer.ggml.tokens[1] is not valid UTF-8");
  EXPECT_EQ(message([&](GgufMetadata& m) { strings(m, tokens)[8] = ""; }),
            "x.gguf: tokenizer.ggml.tokens[8] is a control or user-defined token without text");
  EXPECT_EQ(message([&](GgufMetadata& m) {
              strings(m, tokens).clear();
              types(m).clear();
            }),
            "x.gguf: tokenizer.ggml.tokens has 0 entries; 1 to 16777216 are possible");
  EXPECT_EQ(message([&](GgufMetadata& m) { strings(m, merges) = {"a b", "b a"}; }),
            "x.gguf: tokenizer.ggml.merges[1] \"b a\": \"ba\" is not in the vocabulary");
  EXPECT_EQ(message([&](GgufMetadata& m) { strings(m, merges) = {"c b"}; }),
            "x.gguf: tokenizer.ggml.merges[0] \"c b\": \"c\" is not in the vocabulary");
  for (const char* merge : {"", " ", "ab", "a ", " b", "a b ", "a  b", "a b c"}) {
    EXPECT_NE(message([&](GgufMetadata& m) {
                strings(m, merges) = {merge};
              }).find("two tokens with one space"),
              std::string::npos)
        << merge;
  }
}

TEST(gguf_tokenizer, padding_may_repeat_and_hold_anything) {
  const auto read = read_changed([](GgufMetadata& m) {
    for (const char* text : {"[PAD9]", "ab", "\xff", ""}) {
      strings(m, "tokenizer.ggml.tokens").push_back(text);
      types(m).push_back(kUnused);
    }
    set_integer(m, "tokenizer.ggml.padding_token_id", 9);
  });
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->tokenizer_json, read_changed([](GgufMetadata&) {})->tokenizer_json);
  EXPECT_EQ(read->tokenizer_config.find("pad_token"), nullptr);
}

TEST(gguf_tokenizer, named_tokens_are_written_as_text) {
  const auto read = read_changed([](GgufMetadata& m) {
    set_integer(m, "tokenizer.ggml.bos_token_id", 3);
    set_integer(m, "tokenizer.ggml.eot_token_id", 7);
    set_integer(m, "tokenizer.ggml.eom_token_id", 5);
    set_integer(m, "tokenizer.ggml.unknown_token_id", 4);
    m["tokenizer.ggml.add_bos_token"].value = GgufScalar(false);
  });
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->tokenizer_config.dump(),
            R"({"bos_token":"[gMASK]","eos_token":"<|user|>","unk_token":"<sop>",)"
            R"("add_bos_token":false})");
  const auto none = read_changed([](GgufMetadata& m) { m.erase("tokenizer.ggml.eos_token_id"); });
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->tokenizer_config.find("eos_token"), nullptr);
  const auto text =
      read_changed([](GgufMetadata& m) { set_integer(m, "tokenizer.ggml.eos_token_id", 1); });
  ASSERT_TRUE(text.has_value());
  ASSERT_EQ(text->notes.size(), 1u);
  EXPECT_NE(text->notes[0].find("eos_token_id 1 is ordinary text (\"b\")"), std::string::npos);
}

TEST(gguf_tokenizer, token_ids_outside_the_vocabulary_are_refused) {
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{10}, INT64_MAX, INT64_MIN}) {
    for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eom_token_id"}) {
      const Error error = error_of([&](GgufMetadata& m) { set_integer(m, key, id); });
      EXPECT_EQ(error.code, ErrorCode::kCorrupt);
      EXPECT_EQ(error.message, "x.gguf: " + std::string(key) + " " + std::to_string(id) +
                                   " is not in the vocabulary of 10 tokens");
    }
  }
  const Error unused =
      error_of([](GgufMetadata& m) { set_integer(m, "tokenizer.ggml.eot_token_id", 9); });
  EXPECT_NE(unused.message.find("eot_token_id 9 is padding"), std::string::npos);
}

TEST(gguf_tokenizer, templates_are_one_text_or_a_named_list) {
  const auto config = [](const Change& change) {
    const auto read = read_changed(change);
    EXPECT_TRUE(read.has_value()) << read.error().message;
    const Json* found = read->tokenizer_config.find("chat_template");
    return found == nullptr ? "none" : found->dump();
  };
  EXPECT_EQ(config([](GgufMetadata&) {}), "none");
  const Change plain = [](GgufMetadata& m) { set_string(m, "tokenizer.chat_template", "P"); };
  EXPECT_EQ(config(plain), R"("P")");
  EXPECT_EQ(config([&](GgufMetadata& m) {
              plain(m);
              set_string(m, "tokenizer.chat_template.default", "other");
              set_string(m, "tokenizer.chat_template.tool_use", "T");
              m["tokenizer.chat_templates"].value = Strings{"tool_use"};
            }),
            R"([{"name":"default","template":"P"},{"name":"tool_use","template":"T"}])");
  EXPECT_EQ(config([](GgufMetadata& m) { set_string(m, "tokenizer.chat_template.tool_use", "T"); }),
            R"([{"name":"tool_use","template":"T"}])");
  const std::string huge((4u << 20) + 1, ' ');
  const Error error =
      error_of([&](GgufMetadata& m) { set_string(m, "tokenizer.chat_template", huge); });
  EXPECT_NE(error.message.find("tokenizer.chat_template has 4194305 bytes"), std::string::npos);
}

}  // namespace
}  // namespace glint
