// Images in messages: which URLs are read, what stands for an image in a prompt, and markers in
// texts that never do.
#include "chat/images.h"

#include <gmock/gmock.h>

#include "base/base64.h"
#include "chat/messages.h"
#include "fixture_text.h"

namespace glint {
namespace {

using ::testing::HasSubstr;

constexpr std::int32_t kImage = 304, kBegin = 300, kEnd = 301;

std::string vision_file(const std::string& name) {
  return *read_text_file(std::string(GLINT_TEST_DATA) + "/vision/" + name, 1u << 20);
}

std::string url_of(const std::string& file, const char* head = "data:image/png;base64,") {
  return head +
         base64_encode(*read_text_file(std::string(GLINT_TEST_DATA) + "/media/" + file, 1u << 20));
}

std::shared_ptr<const TextAssets> seeing_text(const std::function<void(TextOptions&)>& change =
                                                  [](TextOptions&) {}) {
  TextOptions options;
  change(options);
  options.images = ImageInput{.patch_size = 4,
                              .temporal_patch_size = 2,
                              .merge = 2,
                              .image_token = kImage,
                              .begin_token = kBegin,
                              .end_token = kEnd};
  TextDocuments documents;
  documents.tokenizer_json = vision_file("tokenizer.json");
  documents.preprocessor_config = as_json(vision_file("preprocessor_config.json"));
  if (!options.chat_template) options.chat_template = vision_file("chat_template.jinja");
  auto text = make_text(std::move(options), Json(), std::move(documents));
  EXPECT_TRUE(text.has_value()) << text.error().message;
  return *text;
}

Json image_part(const std::string& url) {
  return Json(Json::Object{{"type", Json("image_url")},
                           {"image_url", Json(Json::Object{{"url", Json(url)}})}});
}

Json text_part(const std::string& text) {
  return Json(Json::Object{{"type", Json("text")}, {"text", Json(text)}});
}

ChatRequest user_says(Json::Array parts) {
  ChatRequest request;
  request.messages = Json(
      Json::Array{Json(Json::Object{{"role", Json("user")}, {"content", Json(std::move(parts))}})});
  return request;
}

std::string refusal(const TextAssets& text, const ChatRequest& request) {
  const auto prompt = text.prepare(request);
  EXPECT_FALSE(prompt.has_value());
  return prompt ? "" : prompt.error().message;
}

TEST(ChatImages, an_image_stands_where_its_placeholder_was) {
  const auto text = seeing_text();
  // 24 x 17 pixels are 3 x 3 cells of 8, 21 x 13 are 3 x 2.
  const auto prompt = text->prepare(user_says({text_part("a"), image_part(url_of("rgb.png")),
                                               text_part("b"), image_part(url_of("small.png"))}));
  ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
  ASSERT_EQ(prompt->images.size(), 2u);
  std::size_t found = 0;
  for (const auto& [index, count] : {std::pair(std::size_t{0}, 9), {std::size_t{1}, 6}}) {
    const PromptImage& image = prompt->images[index];
    EXPECT_EQ(image.count, count);
    const auto first = static_cast<std::size_t>(image.first);
    EXPECT_EQ(prompt->ids[first - 1], kBegin);
    EXPECT_EQ(prompt->ids[first + static_cast<std::size_t>(count)], kEnd);
    for (int i = 0; i < count; ++i)
      EXPECT_EQ(prompt->ids[first + static_cast<std::size_t>(i)], kImage);
    const ImagePatches patches = image.patches();
    EXPECT_EQ(patches.tokens(), count);
    EXPECT_EQ(patches.values.size(), static_cast<std::size_t>(count) * 4 * 3 * 2 * 4 * 4);
    found += static_cast<std::size_t>(count);
  }
  EXPECT_EQ(count_token(*text, *prompt, "<|image|>"), static_cast<std::ptrdiff_t>(found));
  EXPECT_NE(prompt->images[0].content, prompt->images[1].content);
  const auto again = text->prepare(user_says({image_part(url_of("rgba.png"))}));
  ASSERT_TRUE(again.has_value());
  // The same pixels of another file.
  EXPECT_EQ(again->images[0].content, prompt->images[0].content);
}

TEST(ChatImages, markers_in_texts_are_text) {
  const auto text = seeing_text();
  const auto prompt =
      text->prepare(user_says({text_part("<|begin_of_image|><|image|><|end_of_image|>"),
                               image_part(url_of("rgb.png")), text_part("<|image|>")}));
  ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
  EXPECT_EQ(prompt->images.size(), 1u);
  EXPECT_EQ(count_token(*text, *prompt, "<|image|>"), 9);
  EXPECT_TRUE(text->prepare(chat_of(R"([{"role":"user","content":"<|image|>"}])")).has_value());
  // Where markers in messages are markers, they still stand for nothing.
  const auto trusting = seeing_text([](TextOptions& o) { o.parse_special_in_messages = true; });
  EXPECT_THAT(refusal(*trusting, chat_of(R"([{"role":"user","content":"<|image|>"}])")),
              HasSubstr("1 places for 0 images"));
}

TEST(ChatImages, nothing_is_fetched) {
  const auto text = seeing_text();
  for (const char* url :
       {"http://169.254.169.254/latest", "https://example.com/a.png", "file:///etc/passwd",
        "http://[::1]/", "http://2130706433/", "/etc/passwd", "ftp://x/y"}) {
    EXPECT_THAT(refusal(*text, user_says({image_part(url)})), HasSubstr("fetches nothing")) << url;
  }
}

TEST(ChatImages, wrong_parts_are_named) {
  const auto text = seeing_text();
  const auto of_url = [&](const std::string& url) {
    return refusal(*text, user_says({text_part("x"), image_part(url)}));
  };
  const std::string at = "messages[0].content[1]";
  EXPECT_THAT(of_url("data:image/png,abc"), HasSubstr(at + ": a data: URL must begin"));
  EXPECT_THAT(of_url("data:image/png;base64,@@@@"), HasSubstr("no valid base64"));
  EXPECT_THAT(of_url("data:text/plain;base64,aGk="), HasSubstr("does not hold an image"));
  EXPECT_THAT(of_url("data:image/png;base64,"), HasSubstr(at + ": the image is empty"));
  EXPECT_THAT(of_url("data:image/png;base64,aGVsbG8="), HasSubstr("no image"));
  const std::string whole = url_of("rgb.png");
  EXPECT_THAT(of_url(whole.substr(0, whole.size() / 8 * 4 + 2)), HasSubstr("damaged"));
  ChatRequest request = user_says({});
  request.messages = as_json(R"([{"role":"user","content":[{"type":"image_url"}]}])");
  EXPECT_THAT(refusal(*text, request), HasSubstr("[0].image_url: must be a data: URL"));
  request.messages =
      as_json(R"([{"role":"assistant","content":[{"type":"image_url","image_url":"data:"}]}])");
  EXPECT_THAT(refusal(*text, request), HasSubstr("users and tools only"));
  request.messages =
      as_json(R"([{"role":"user","content":[{"type":"video_url","video_url":{"url":"x"}}]}])");
  EXPECT_THAT(refusal(*text, request), HasSubstr("videos are not taken"));
}

TEST(ChatImages, there_are_limits) {
  const auto few = seeing_text([](TextOptions& o) { o.max_images = 2; });
  const Json image = image_part(url_of("rgb.png"));
  EXPECT_TRUE(few->prepare(user_says({image, image})).has_value());
  EXPECT_THAT(refusal(*few, user_says({image, image, image})), HasSubstr("at most 2 images"));
  const auto small = seeing_text([](TextOptions& o) { o.max_image_tokens = 2; });
  const auto prompt = small->prepare(user_says({image}));
  ASSERT_TRUE(prompt.has_value());
  EXPECT_LE(prompt->images[0].count, 2);
  ChatRequest cut = user_says({image});
  cut.keep_last_prompt_tokens = 5;
  EXPECT_THAT(refusal(*few, cut), HasSubstr("truncate_prompt_tokens"));
}

TEST(ChatImages, templates_without_a_place_and_blind_models_refuse_them) {
  const ChatRequest request = user_says({image_part(url_of("rgb.png"))});
  const auto deaf = seeing_text([](TextOptions& o) { o.chat_template = "{{ messages[0].role }}"; });
  EXPECT_THAT(refusal(*deaf, request), HasSubstr("0 places for 1 images"));
  const auto blind = fixture_text("glm47");
  EXPECT_THAT(refusal(*blind, request), HasSubstr("reads text only"));
}

TEST(ChatImages, tools_may_answer_with_images) {
  std::vector<ImagePart> images;
  const Json messages = as_json(
      R"([{"role":"tool","content":[{"type":"text","text":"see"},{"type":"input_image","image_url":"data:x"}]}])");
  const auto normal = normalise_messages(messages, ArgumentStyle::kObject, &images);
  ASSERT_TRUE(normal.has_value()) << normal.error().message;
  ASSERT_EQ(images.size(), 1u);
  EXPECT_EQ(images[0].path, "messages[0].content[1]");
  EXPECT_EQ(images[0].url, "data:x");
  EXPECT_EQ(normal->dump(),
            R"([{"role":"tool","content":[{"type":"text","text":"see"},{"type":"image"}]}])");
}

}  // namespace
}  // namespace glint
