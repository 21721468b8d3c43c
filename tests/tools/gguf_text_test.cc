// The text side of a GGUF file against that of the folder it was made from, and against what
// transformers says.
#include <gtest/gtest.h>

#include <algorithm>

#include "../base/temp_folder.h"
#include "base/file.h"
#include "tools/text_source.h"

namespace glint {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

constexpr std::string_view kSmallFile = "variant-no_weights_scale.gguf";

fs::path source_folder() {
  return GLINT_SOURCE_DIR;
}
fs::path gguf_folder() {
  return source_folder() / "tests/data/gguf";
}
fs::path demo_folder() {
  return source_folder() / "models/demo";
}

std::string read_file(const fs::path& path) {
  auto text = read_text_file(path, 64u << 20);
  EXPECT_TRUE(text.has_value()) << path;
  return text.has_value() ? std::move(*text) : std::string();
}

Json read_json(const fs::path& path) {
  auto json = parse_json(read_file(path));
  EXPECT_TRUE(json.has_value()) << path;
  return json.has_value() ? std::move(*json) : Json();
}

Ids ids_of(const Json& array) {
  Ids ids;
  for (const Json& id : array.as_array()) ids.push_back(static_cast<std::int32_t>(id.as_int()));
  return ids;
}

Result<std::shared_ptr<const TextAssets>> load(const fs::path& path) {
  GLINT_TRY(const auto checkpoint, Checkpoint::open(path));
  return load_text_assets(*checkpoint);
}

std::shared_ptr<const TextAssets> text_of(const fs::path& path) {
  auto text = load(path);
  EXPECT_TRUE(text.has_value()) << path << ": " << text.error().message;
  return text.has_value() ? *text : nullptr;
}

// The small file with each of `keys` under another name, that is, without it.
class FileWithout {
 public:
  explicit FileWithout(const std::vector<std::string>& keys) {
    std::string bytes = read_file(gguf_folder() / kSmallFile);
    for (const std::string& key : keys) {
      const std::size_t at = bytes.find(key);
      EXPECT_NE(at, std::string::npos) << key;
      if (at != std::string::npos) bytes[at + key.size() - 1] = '0';
    }
    folder_.write("model.gguf", bytes);
  }
  fs::path path() const { return folder_.path() / "model.gguf"; }
  fs::path folder() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

// As transformers' split_special_tokens: special tokens are text, other added tokens are not.
Ids encode_special_as_text(const Tokenizer& tokenizer, std::string text) {
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_added(id) || tokenizer.is_special(id)) continue;
    const std::string_view content = tokenizer.token_bytes(id);
    const std::size_t at = text.find(content);
    if (at == std::string::npos) continue;
    Ids ids = encode_special_as_text(tokenizer, text.substr(0, at));
    ids.push_back(id);
    std::ranges::copy(encode_special_as_text(tokenizer, text.substr(at + content.size())),
                      std::back_inserter(ids));
    return ids;
  }
  return tokenizer.encode(text, false);
}

TEST(gguf_text, ids_equal_transformers_on_awkward_strings) {
  const Json cases = read_json(gguf_folder() / "tokens.json");
  ASSERT_EQ(cases.as_array().size(), 64u);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(gguf_folder())) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("demo-") && !name.starts_with("variant-")) continue;
    SCOPED_TRACE(name);
    const auto tokenizer = load_tokenizer(entry.path());
    ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
    for (const Json& test : cases.as_array()) {
      const std::string& text = test.find("text")->as_string();
      EXPECT_EQ((*tokenizer)->encode(text), ids_of(*test.find("ids"))) << text;
      EXPECT_EQ(encode_special_as_text(**tokenizer, text),
                ids_of(*test.find("ids_special_as_text")))
          << text;
    }
    ++files;
  }
  EXPECT_GE(files, 4);
}

TEST(gguf_text, the_tokenizer_equals_the_folders) {
  const auto ours = load_tokenizer(gguf_folder() / kSmallFile);
  const auto theirs = load_tokenizer(demo_folder());
  ASSERT_TRUE(ours.has_value() && theirs.has_value());
  ASSERT_EQ((*ours)->vocab_size(), (*theirs)->vocab_size());
  for (std::int32_t id = 0; id < (*ours)->vocab_size(); ++id) {
    EXPECT_EQ((*ours)->token_bytes(id), (*theirs)->token_bytes(id)) << id;
    EXPECT_EQ((*ours)->is_added(id), (*theirs)->is_added(id)) << id;
    EXPECT_EQ((*ours)->is_special(id), (*theirs)->is_special(id)) << id;
  }
  const Json corpus = read_json(source_folder() / "tests/data/tokenizer_corpus.json");
  for (const Json& test : corpus.find("cases")->as_array()) {
    const std::string& text = test.find("text")->as_string();
    EXPECT_EQ((*ours)->encode(text), (*theirs)->encode(text)) << text;
    EXPECT_EQ((*ours)->encode(text, false), (*theirs)->encode(text, false)) << text;
    EXPECT_EQ((*ours)->guard(text), (*theirs)->guard(text)) << text;
    EXPECT_EQ((*ours)->encode_guarded(text), (*theirs)->encode_guarded(text)) << text;
  }
}

TEST(gguf_text, template_end_tokens_and_limits_equal_the_folders) {
  const auto ours = text_of(gguf_folder() / kSmallFile);
  const auto theirs = text_of(demo_folder());
  ASSERT_TRUE(ours && theirs);
  EXPECT_EQ(ours->template_source(), theirs->template_source());
  Ids end = ours->end_tokens();
  Ids wanted = theirs->end_tokens();
  std::ranges::sort(end);
  std::ranges::sort(wanted);
  EXPECT_EQ(end, wanted);
  // The file says nothing of sampling, so the family's values hold.
  EXPECT_EQ(ours->sampling_defaults().dump(), R"({"temperature":1.0,"top_p":0.95})");
}

TEST(gguf_text, prompts_equal_the_reference) {
  const auto text = text_of(gguf_folder() / kSmallFile);
  ASSERT_TRUE(text);
  const Json prompts = read_json(gguf_folder() / "prompts.json");
  ASSERT_EQ(prompts.as_object().size(), 4u);
  for (const auto& [name, prompt] : prompts.as_object()) {
    EXPECT_EQ(text->tokenizer().encode(prompt.find("text")->as_string()),
              ids_of(*prompt.find("ids")))
        << name;
  }
  ChatRequest request;
  request.messages = *parse_json(R"([{"role":"user","content":"What is 4 + 1?"}])");
  request.enable_thinking = false;
  const auto chat = text->prepare(request);
  ASSERT_TRUE(chat.has_value()) << chat.error().message;
  EXPECT_EQ(chat->ids, ids_of(*prompts.find("chat")->find("ids")));
}

TEST(gguf_text, conversations_render_as_from_the_folder) {
  const auto ours = text_of(gguf_folder() / kSmallFile);
  const auto theirs = text_of(demo_folder());
  ASSERT_TRUE(ours && theirs);
  const std::string lines = read_file(demo_folder() / "evals.jsonl");
  int checked = 0;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = lines.find('\n', begin);
    const auto item = parse_json(std::string_view(lines).substr(begin, end - begin));
    ASSERT_TRUE(item.has_value());
    begin = end + 1;
    ChatRequest request;
    request.messages = *item->find("messages");
    if (const Json* tools = item->find("tools")) request.tools = *tools;
    const auto a = ours->prepare(request);
    const auto b = theirs->prepare(request);
    ASSERT_TRUE(a.has_value() && b.has_value());
    EXPECT_EQ(a->text, b->text);
    EXPECT_EQ(a->ids, b->ids);
    ++checked;
  }
  EXPECT_GT(checked, 100);
}

TEST(gguf_text, keys_that_may_be_missing_change_nothing) {
  const Json cases = read_json(gguf_folder() / "tokens.json");
  for (const std::vector<std::string>& keys :
       {std::vector<std::string>{"tokenizer.ggml.pre"},
        {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"},
        {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"},
        {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.unknown_token_id"}}) {
    SCOPED_TRACE(keys[0]);
    const FileWithout file(keys);
    const auto text = text_of(file.path());
    ASSERT_TRUE(text);
    Ids end = text->end_tokens();
    std::ranges::sort(end);
    EXPECT_EQ(end, (Ids{1515, 1522, 1524}));
    for (const Json& test : cases.as_array()) {
      EXPECT_EQ(text->tokenizer().encode(test.find("text")->as_string()),
                ids_of(*test.find("ids")));
    }
  }
}

TEST(gguf_text, keys_that_must_be_there_are_named) {
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.tokens",
                          "tokenizer.ggml.token_type", "tokenizer.ggml.merges"}) {
    const FileWithout file({key});
    const std::string wanted = file.path().string() + ": " + key + " is missing";
    const auto text = load(file.path());
    ASSERT_FALSE(text.has_value()) << key;
    EXPECT_NE(text.error().message.find(wanted), std::string::npos) << text.error().message;
    const auto tokenizer = load_tokenizer(file.path());
    ASSERT_FALSE(tokenizer.has_value()) << key;
    EXPECT_NE(tokenizer.error().message.find(wanted), std::string::npos);
  }
  const FileWithout no_template({"tokenizer.chat_template"});
  const auto text = text_of(no_template.path());
  ASSERT_TRUE(text);
  EXPECT_FALSE(text->has_template());
}

TEST(gguf_text, a_folder_of_one_gguf_is_its_tokenizer_too) {
  const FileWithout file({"tokenizer.ggml.bos_token_id"});
  const auto tokenizer = load_tokenizer(file.folder());
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->token_id("<|user|>"), 1522);
  // As in the other commands, the GGUF file counts where there are no safetensors.
  TempFolder both;
  both.write("model.gguf", read_file(gguf_folder() / kSmallFile));
  both.write("tokenizer.json", "{}");
  EXPECT_TRUE(load_tokenizer(both.path()).has_value());
  both.write("model.safetensors", "x");
  EXPECT_FALSE(load_tokenizer(both.path()).has_value());
  TempFolder empty;
  const auto none = load_tokenizer(empty.path());
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message.find("tokenizer.json"), std::string::npos);
  empty.write("model.gguf", "<html>");
  EXPECT_FALSE(load_tokenizer(empty.path() / "model.gguf").has_value());
}

}  // namespace
}  // namespace glint
