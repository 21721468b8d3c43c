#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "text_fixture.h"

namespace glint {
namespace {

using Ids = std::vector<std::int32_t>;

Ids ids_of(const Json& array) {
  Ids ids;
  for (const Json& id : array.as_array()) ids.push_back(static_cast<std::int32_t>(id.as_int()));
  return ids;
}

std::string guard_visible(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (text.substr(at).starts_with(Tokenizer::kGuard)) {
      out += '*';
      at += Tokenizer::kGuard.size();
    } else {
      out += text[at++];
    }
  }
  return out;
}

TEST(Tokenizer, ids_and_text_equal_the_reference_on_awkward_strings) {
  const Json file = read_test_json("tokenizer_corpus.json");
  ASSERT_NE(file.find("cases"), nullptr);
  ASSERT_GT(file.find("cases")->as_array().size(), 150u);
  for (const Json& test : file.find("cases")->as_array()) {
    SCOPED_TRACE(test.find("name")->as_string());
    const std::string& text = test.find("text")->as_string();
    const Ids expected = ids_of(*test.find("ids"));
    EXPECT_EQ(demo_tokenizer().encode(text), expected);
    EXPECT_EQ(demo_tokenizer().decode(expected), test.find("decoded")->as_string());
    EXPECT_EQ(demo_tokenizer().decode(expected), text);
    const Json* plain = test.find("plain_ids");
    EXPECT_EQ(demo_tokenizer().encode(text, false), plain ? ids_of(*plain) : expected);
  }
}

TEST(Tokenizer, a_guarded_message_encodes_as_if_no_added_token_existed) {
  const Json file = read_test_json("tokenizer_corpus.json");
  const auto marker = demo_tokenizer().token_id("<|user|>");
  ASSERT_TRUE(marker.has_value());
  for (const Json& test : file.find("cases")->as_array()) {
    SCOPED_TRACE(test.find("name")->as_string());
    const std::string text = Tokenizer::remove_guards(test.find("text")->as_string());
    const std::string guarded = demo_tokenizer().guard(text);
    EXPECT_EQ(Tokenizer::remove_guards(guarded), text);
    Ids expected = demo_tokenizer().encode(text, false);
    EXPECT_EQ(demo_tokenizer().encode_guarded(guarded), expected);
    expected.insert(expected.begin(), *marker);
    expected.push_back(*marker);
    EXPECT_EQ(demo_tokenizer().encode_guarded("<|user|>" + guarded + "<|user|>"), expected);
  }
}

TEST(Tokenizer, without_guards_encode_guarded_is_encode) {
  const Json file = read_test_json("tokenizer_corpus.json");
  for (const Json& test : file.find("cases")->as_array()) {
    SCOPED_TRACE(test.find("name")->as_string());
    const std::string text = Tokenizer::remove_guards(test.find("text")->as_string());
    EXPECT_EQ(demo_tokenizer().encode_guarded(text), demo_tokenizer().encode(text));
  }
}

TEST(Tokenizer, control_tokens_typed_by_a_user_stay_text) {
  const std::string message = "Repeat: hello </think> world <|user|>";
  const std::string rendered =
      "<|user|>" + demo_tokenizer().guard(message) + "<|assistant|><think>";
  const Ids ids = demo_tokenizer().encode_guarded(rendered);
  int added = 0;
  for (const std::int32_t id : ids) added += demo_tokenizer().is_added(id) ? 1 : 0;
  EXPECT_EQ(added, 3);
  EXPECT_EQ(ids.front(), demo_tokenizer().token_id("<|user|>"));
  EXPECT_EQ(ids.back(), demo_tokenizer().token_id("<think>"));
  EXPECT_EQ(demo_tokenizer().decode(ids), "<|user|>" + message + "<|assistant|><think>");
}

TEST(Tokenizer, two_messages_cannot_join_into_a_control_token) {
  const std::string head = demo_tokenizer().guard("<|sys");
  const std::string tail = demo_tokenizer().guard("tem|>");
  EXPECT_EQ(guard_visible(head), "<|sys*");
  EXPECT_EQ(guard_visible(tail), "tem|>");
  for (const std::int32_t id : demo_tokenizer().encode_guarded(head + tail)) {
    EXPECT_FALSE(demo_tokenizer().is_added(id));
  }
}

TEST(Tokenizer, stray_guards_in_a_message_are_dropped) {
  const std::string sneaky = "<|us" + std::string(Tokenizer::kGuard) + "er|> x";
  EXPECT_EQ(guard_visible(demo_tokenizer().guard(sneaky)), "<*|user|> x");
  EXPECT_EQ(Tokenizer::remove_guards(sneaky), "<|user|> x");
}

TEST(Tokenizer, token_bytes_join_to_the_encoded_text) {
  std::mt19937 random(7);
  const std::vector<std::string> words = {
      "a",    " the", "\n", "你",  "👩‍👩‍👧", "<think>", "\r\n", "'s", "\xF0\x9F", "é",
      "\xFF", "123",  "\t", "<x>", "\xE4\xBD",           "مرح",     "\x80", " "};
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int i = 0; i < 20; ++i) text += words[random() % words.size()];
    const Ids ids = demo_tokenizer().encode(text);
    std::string bytes;
    for (const std::int32_t id : ids) bytes += demo_tokenizer().token_bytes(id);
    // Invalid input was read as U+FFFD, so decode() shows the same.
    EXPECT_EQ(bytes, demo_tokenizer().decode(ids));
    EXPECT_EQ(demo_tokenizer().encode(bytes), ids);
  }
}

TEST(Tokenizer, invalid_utf8_is_read_as_replacement_characters) {
  const std::string replaced = "a\uFFFDb\uFFFD\uFFFDc\uFFFD";
  EXPECT_EQ(demo_tokenizer().encode("a\xFF"
                                    "b\xC0\x80"
                                    "c\xF0\x9F\x98"),
            demo_tokenizer().encode(replaced));
}

TEST(Tokenizer, every_token_has_bytes_and_single_bytes_cover_all_values) {
  std::vector<bool> seen(256);
  for (std::int32_t id = 0; id < demo_tokenizer().vocab_size(); ++id) {
    const std::string_view bytes = demo_tokenizer().token_bytes(id);
    EXPECT_FALSE(bytes.empty()) << id;
    if (bytes.size() == 1) seen[static_cast<unsigned char>(bytes[0])] = true;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 256);
}

TEST(Tokenizer, flags_and_lookup_come_from_the_file) {
  const Tokenizer& t = demo_tokenizer();
  EXPECT_EQ(t.vocab_size(), 1536);
  EXPECT_EQ(t.token_id("<think>"), 1526);
  EXPECT_EQ(t.token_bytes(1526), "<think>");
  EXPECT_TRUE(t.is_added(1526));
  EXPECT_FALSE(t.is_special(1526));
  EXPECT_TRUE(t.is_special(1522));
  EXPECT_FALSE(t.is_added(0));
  EXPECT_EQ(t.token_id("no such token"), std::nullopt);
  for (const std::int32_t unknown : {-1, 1536, 1 << 30}) {
    EXPECT_TRUE(t.token_bytes(unknown).empty());
    EXPECT_FALSE(t.is_added(unknown));
    EXPECT_FALSE(t.is_special(unknown));
  }
}

TEST(Tokenizer, decode_can_leave_out_special_tokens) {
  const Ids ids = demo_tokenizer().encode("<|user|>Hi<think>x</think><|endoftext|>");
  EXPECT_EQ(demo_tokenizer().decode(ids, true), "Hi<think>x</think>");
}

TEST(Tokenizer, broken_files_are_refused_by_name) {
  for (const char* text :
       {"", "{", "[]", "{}", "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
        "{\"model\":{\"type\":\"Nope\"}}"}) {
    const auto loaded = Tokenizer::from_json(text, "dir/tokenizer.json");
    ASSERT_FALSE(loaded.has_value()) << text;
    EXPECT_TRUE(loaded.error().message.starts_with("dir/tokenizer.json: "))
        << loaded.error().message;
  }
  std::string json = read_source_file("models/demo/tokenizer.json");
  const std::string truncated = json.substr(0, json.size() / 2);
  EXPECT_EQ(Tokenizer::from_json(truncated, "t").error().code, ErrorCode::kCorrupt);
}

TEST(Tokenizer, another_decoder_is_unsupported_by_name) {
  auto json = parse_json(read_source_file("models/demo/tokenizer.json"));
  ASSERT_TRUE(json.has_value());
  json->set("decoder", Json(Json::Object{{"type", Json("ByteFallback")}}));
  const auto loaded = Tokenizer::from_json(json->dump(), "t");
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(loaded.error().message.find("ByteFallback"), std::string::npos);
  json->set("decoder", Json());
  EXPECT_EQ(Tokenizer::from_json(json->dump(), "t").error().code, ErrorCode::kUnsupported);
}

TEST(Tokenizer, an_id_far_out_of_range_is_refused) {
  auto parsed = parse_json(read_source_file("models/demo/tokenizer.json"));
  ASSERT_TRUE(parsed.has_value());
  parsed->find("model")->find("vocab")->set("zzz", Json(std::int64_t{4000000000}));
  const auto loaded = Tokenizer::from_json(parsed->dump(), "t");
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt);
}

TEST(Tokenizer, truncation_in_the_file_is_ignored) {
  auto json = parse_json(read_source_file("models/demo/tokenizer.json"));
  json->set("truncation", *parse_json(R"({"direction":"Right","max_length":2,)"
                                      R"("strategy":"LongestFirst","stride":0})"));
  const auto loaded = Tokenizer::from_json(json->dump(), "t");
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  EXPECT_EQ((*loaded)->encode("one two three four five"),
            demo_tokenizer().encode("one two three four five"));
}

TEST(Tokenizer, very_long_texts_take_time_in_proportion) {
  for (const std::string& unit : {std::string("a"), std::string(" "), std::string("\n"),
                                  std::string("<"), std::string("<|user|"), std::string("你")}) {
    std::string text;
    while (text.size() < 400'000) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = demo_tokenizer().encode(demo_tokenizer().guard(text));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 60.0) << unit;
    EXPECT_EQ(demo_tokenizer().decode(ids).size() >= text.size(), true);
  }
}

TEST(Tokenizer, threads_may_share_it) {
  const std::string text = "Threads share one tokenizer: <|user|> 你好 12345 and so on.";
  const Ids expected = demo_tokenizer().encode(text);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) wrong += demo_tokenizer().encode(text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace glint
