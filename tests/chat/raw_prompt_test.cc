#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chat/tokenizer_prefix.h"
#include "fixture_text.h"

namespace glint {
namespace {

ChatRequest raw(std::string prompt, bool add_special = true) {
  ChatRequest request;
  request.raw = true;
  request.raw_prompt = std::move(prompt);
  request.add_special_tokens = add_special;
  return request;
}

TEST(raw_prompt, an_empty_one_is_the_token_that_begins_texts) {
  const auto text = demo_text();
  for (const bool special : {false, true}) {
    EXPECT_EQ(text->prepare(raw("", special))->ids,
              std::vector<std::int32_t>{*text->tokenizer().token_id("<|endoftext|>")});
  }
  TextDocuments documents;
  documents.tokenizer_json = *read_text_file(demo_folder() / "tokenizer.json", 1u << 20);
  documents.tokenizer_config = as_json(R"({"bos_token": {"content": "<sop>"}})");
  const auto other = make_text({}, Json(), documents);
  EXPECT_EQ((*other)->prepare(raw(""))->ids,
            std::vector<std::int32_t>{*text->tokenizer().token_id("<sop>")});
}

TEST(raw_prompt, the_tokenizers_prefix_is_put_in_front_once) {
  const auto text = demo_text();
  const auto ids = [&](const ChatRequest& request) { return text->prepare(request)->ids; };
  EXPECT_EQ(ids(raw("hello")), text->tokenizer().encode("[gMASK]<sop>hello"));
  EXPECT_EQ(ids(raw("[gMASK]<sop>hello")), text->tokenizer().encode("[gMASK]<sop>hello"));
  EXPECT_EQ(ids(raw("hello", false)), text->tokenizer().encode("hello"));
  EXPECT_EQ(text->prepare(raw("hello"))->text, "[gMASK]<sop>hello");
}

TEST(raw_prompt, text_beyond_what_there_is_memory_to_encode_is_refused) {
  const auto text = demo_text();
  ChatRequest request = raw("hello");
  request.max_prompt_bytes = 5;
  EXPECT_TRUE(text->prepare(request).has_value());
  request.raw_prompt = "hello!";
  EXPECT_THAT(rendered(*text, request),
              testing::StartsWith("error: prompt: the prompt has 6 bytes of text"));
  ChatRequest chat;
  chat.messages = as_json(R"([{"role": "user", "content": "hello"}])");
  chat.max_prompt_bytes = 5;
  EXPECT_THAT(rendered(*text, chat), testing::HasSubstr("leaves room to encode 5"));
  chat.max_prompt_bytes = 5000;
  EXPECT_TRUE(text->prepare(chat).has_value());
}

TEST(raw_prompt, ids_are_taken_as_they_are) {
  const auto text = demo_text();
  ChatRequest request = raw("ignored");
  request.raw_ids = text->tokenizer().encode("<|user|>hello");
  const auto prompt = text->prepare(request);
  ASSERT_TRUE(prompt.has_value());
  EXPECT_EQ(prompt->ids, request.raw_ids);
  EXPECT_EQ(prompt->text, "<|user|>hello");
  request.raw_ids = {1, 1536};
  EXPECT_EQ(rendered(*text, request),
            "error: prompt: token 1536 is not in the vocabulary of 1536 tokens");
  request.raw_ids = {-1};
  EXPECT_TRUE(rendered(*text, request).starts_with("error: prompt: token -1"));
}

TEST(raw_prompt, long_ones_can_lose_their_beginning) {
  const auto text = demo_text();
  ChatRequest request = raw("one two three four");
  const auto whole = text->prepare(request)->ids;
  request.keep_last_prompt_tokens = 2;
  EXPECT_EQ(text->prepare(request)->ids, std::vector<std::int32_t>(whole.end() - 2, whole.end()));
}

TEST(tokenizer_prefix, is_read_from_the_post_processor) {
  const auto demo = demo_text();
  const Tokenizer& tokenizer = demo->tokenizer();
  const auto of = [&](const char* json, const char* config = "null", const char* source = "") {
    return prefix_tokens(json, as_json(config), source, tokenizer);
  };
  const char* processor =
      R"({"model":{"vocab":{"post_processor":1,"}":2}},"post_processor":{"type":"TemplateProcessing",
      "single":[{"SpecialToken":{"id":"A"}},{"SpecialToken":{"id":"B"}},{"Sequence":{"id":"A"}},{"SpecialToken":{"id":"C"}}],
      "special_tokens":{"A":{"id":"A","ids":[7]},"B":{"ids":[8,9]},"C":{"ids":[10]}}}})";
  EXPECT_EQ(of(processor), (std::vector<std::int32_t>{7, 8, 9}));
  EXPECT_EQ(of((R"({"post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},)" +
                std::string(top_level_member(processor, "post_processor")) + "]}}")
                   .c_str()),
            (std::vector<std::int32_t>{7, 8, 9}));
  EXPECT_EQ(of("{}"), std::vector<std::int32_t>());
  EXPECT_EQ(of("{}", R"({"add_bos_token":true,"bos_token":"<sop>"})"),
            std::vector<std::int32_t>{*tokenizer.token_id("<sop>")});
  EXPECT_EQ(of("{}", R"({"add_bos_token":false,"bos_token":"<sop>"})"),
            std::vector<std::int32_t>());
  EXPECT_EQ(of("{}", "null", "[gMASK]<sop>{{ x }}").size(), 2u);
  for (
      const char* bad :
      {"", "{", R"({"post_processor")", R"({"post_processor":)",
       R"({"post_processor":{"single":7}})",
       R"({"post_processor":{"single":[7,{"SpecialToken":{"id":"Z"}}]}})",
       R"({"post_processor":{"single":[{"SpecialToken":{"id":"A"}}],"special_tokens":{"A":{"ids":[99999,-1,"x"]}}}})"}) {
    EXPECT_EQ(of(bad), std::vector<std::int32_t>()) << bad;
  }
}

TEST(tokenizer_prefix, members_are_found_without_parsing) {
  const char* json = R"( { "a" : [1, {"b": "}]"}] , "b\"" : 3, "b":"x\"y" , "c": 12 } )";
  EXPECT_EQ(top_level_member(json, "a"), R"([1, {"b": "}]"}])");
  EXPECT_EQ(top_level_member(json, "b"), R"("x\"y")");
  EXPECT_EQ(top_level_member(json, "d"), "");
}

}  // namespace
}  // namespace glint
