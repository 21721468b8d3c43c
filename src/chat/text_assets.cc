#include "chat/text_assets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/file.h"
#include "chat/tokenizer_prefix.h"

namespace glint {
namespace {

constexpr std::size_t kMaxTokenizerBytes = 256u << 20;
constexpr std::size_t kMaxConfigBytes = 32u << 20;
constexpr std::size_t kMaxTemplateBytes = 4u << 20;

// A file's text, or nothing when there is no such file.
Result<std::optional<std::string>> read_if_there(const std::filesystem::path& path,
                                                 std::size_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::optional<std::string>();
  GLINT_TRY(std::string text, read_text_file(path, max_bytes));
  return std::optional<std::string>(std::move(text));
}

Result<Json> read_json_if_there(const std::filesystem::path& path) {
  GLINT_TRY(std::optional<std::string> text, read_if_there(path, kMaxConfigBytes));
  if (!text) return Json();
  auto parsed = parse_json(*text);
  if (!parsed) return corrupt(fmt::format("{}: {}", path.string(), parsed.error().message));
  if (!parsed->is_object()) {
    return corrupt(
        fmt::format("{}: must be a JSON object, not {}", path.string(), parsed->type_name()));
  }
  return std::move(*parsed);
}

// A token entry is its text, or an object that holds the text.
const std::string* token_text(const Json* entry) {
  if (entry != nullptr && entry->is_object()) entry = entry->find("content");
  return entry != nullptr && entry->is_string() ? &entry->as_string() : nullptr;
}

struct TemplateTexts {
  std::optional<std::string> plain, tool_use;
  std::string name;  // where they come from
};

Status templates_from_list(const Json::Array& list, TemplateTexts& texts) {
  for (const Json& entry : list) {
    const Json* name = entry.find("name");
    const Json* text = entry.find("template");
    if (name == nullptr || !name->is_string() || text == nullptr || !text->is_string()) {
      return corrupt(texts.name +
                     ": entries of chat_template must have a name and a template, both strings");
    }
    if (name->as_string() == "default") texts.plain = text->as_string();
    if (name->as_string() == "tool_use") texts.tool_use = text->as_string();
  }
  if (!list.empty() && !texts.plain && !texts.tool_use) {
    return corrupt(texts.name +
                   ": chat_template has neither a 'default' nor a 'tool_use' entry; pass "
                   "--chat-template FILE");
  }
  return {};
}

Result<TemplateTexts> find_templates(const TextDocuments& documents,
                                     const std::optional<std::string>& replacement) {
  if (replacement) return TemplateTexts{*replacement, std::nullopt, "--chat-template"};
  if (documents.chat_template) {
    return TemplateTexts{documents.chat_template, std::nullopt, documents.chat_template_name};
  }
  TemplateTexts texts;
  texts.name = documents.tokenizer_config_name;
  const Json* entry = documents.tokenizer_config.find("chat_template");
  if (entry == nullptr || entry->is_null()) return texts;
  if (entry->is_string()) {
    texts.plain = entry->as_string();
  } else if (entry->is_array()) {
    GLINT_TRY_VOID(templates_from_list(entry->as_array(), texts));
  } else {
    return corrupt(fmt::format("{}: chat_template must be a string or a list, not {}", texts.name,
                               entry->type_name()));
  }
  return texts;
}

// Collects end tokens without repeats; an id out of range is the file's fault.
class EndTokens {
 public:
  explicit EndTokens(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Status add_ids(const Json* ids, const std::string& file) {
    if (ids == nullptr || ids->is_null()) return {};
    const Json::Array one = {*ids};
    for (const Json& id : ids->is_array() ? ids->as_array() : one) {
      if (!id.is_int()) {
        return corrupt(
            fmt::format("{}: eos_token_id must be an integer or a list of integers, not {}", file,
                        id.type_name()));
      }
      if (id.as_int() < 0 || id.as_int() >= tokenizer_.vocab_size()) {
        return corrupt(fmt::format("{}: eos_token_id {} is not in the vocabulary of {} tokens",
                                   file, id.as_int(), tokenizer_.vocab_size()));
      }
      add(static_cast<std::int32_t>(id.as_int()));
    }
    return {};
  }

  Status add_named(const std::string& text, const TextDocuments& documents) {
    const std::optional<std::int32_t> id = tokenizer_.token_id(text);
    if (!id) {
      return corrupt(fmt::format("{}: eos_token '{}' is not in {}", documents.tokenizer_config_name,
                                 text, documents.tokenizer_name));
    }
    add(*id);
    return {};
  }

  // Only a control token ends a turn; text of the same spelling in the vocabulary does not.
  void add_if_special(std::string_view text) {
    if (const auto id = tokenizer_.token_id(text); id && tokenizer_.is_special(*id)) add(*id);
  }

  std::vector<std::int32_t> take() { return std::move(ids_); }

 private:
  void add(std::int32_t id) {
    if (std::ranges::find(ids_, id) == ids_.end()) ids_.push_back(id);
  }
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;
};

Result<std::vector<std::int32_t>> find_end_tokens(const Tokenizer& tokenizer,
                                                  const TextDocuments& documents,
                                                  const Json& config,
                                                  const Json& generation_config) {
  EndTokens tokens(tokenizer);
  GLINT_TRY_VOID(tokens.add_ids(config.find("eos_token_id"), documents.config_name));
  if (const Json* text_config = config.find("text_config")) {
    GLINT_TRY_VOID(tokens.add_ids(text_config->find("eos_token_id"),
                                  documents.config_name + " (text_config)"));
  }
  GLINT_TRY_VOID(
      tokens.add_ids(generation_config.find("eos_token_id"), documents.generation_config_name));
  if (const std::string* text = token_text(documents.tokenizer_config.find("eos_token"))) {
    GLINT_TRY_VOID(tokens.add_named(*text, documents));
  }
  for (const char* text : {"<|user|>", "<|observation|>", "<|endoftext|>"})
    tokens.add_if_special(text);
  std::vector<std::int32_t> ids = tokens.take();
  if (ids.empty()) {
    return corrupt(fmt::format(
        "no end token: neither {} nor {} has eos_token_id, and {} has no eos_token; "
        "add one, or answers never end",
        documents.config_name, documents.generation_config_name, documents.tokenizer_config_name));
  }
  return ids;
}

Status check_vocabulary(const Tokenizer& tokenizer, const TextDocuments& documents,
                        const Json& config) {
  const Json* size = config.find("vocab_size");
  if (size == nullptr) {
    if (const Json* text_config = config.find("text_config"))
      size = text_config->find("vocab_size");
  }
  if (size == nullptr || !size->is_int() || tokenizer.vocab_size() <= size->as_int()) return {};
  return corrupt(fmt::format(
      "{} has ids up to {}, but {} says vocab_size {}: the two belong to different models",
      documents.tokenizer_name, tokenizer.vocab_size() - 1, documents.config_name, size->as_int()));
}

Result<std::shared_ptr<const ParsedTemplate>> parse_if_there(const std::optional<std::string>& text,
                                                             const std::string& name,
                                                             const std::string& model_type) {
  if (!text) return std::shared_ptr<const ParsedTemplate>();
  return parse_template(*text, name, model_type);
}

Json find_token_variables(const Json& tokenizer_config) {
  Json variables(Json::Object{});
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                          "cls_token", "mask_token"}) {
    if (const std::string* text = token_text(tokenizer_config.find(key)))
      variables.set(key, Json(*text));
  }
  return variables;
}

std::string model_type_of(const Json& config) {
  const Json* type = config.find("model_type");
  return type != nullptr && type->is_string() ? type->as_string() : std::string();
}

// What stands for "no text": the tokenizer's bos_token, <|endoftext|>, or an end token.
std::int32_t find_start_token(const Tokenizer& tokenizer, const Json& tokenizer_config,
                              std::int32_t end_token) {
  const std::string* bos = token_text(tokenizer_config.find("bos_token"));
  if (bos != nullptr) {
    if (const auto id = tokenizer.token_id(*bos)) return *id;
  }
  return tokenizer.token_id("<|endoftext|>").value_or(end_token);
}

Result<TextDocuments> read_documents(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "tokenizer.json";
  GLINT_TRY(std::optional<std::string> text, read_if_there(file, kMaxTokenizerBytes));
  if (!text) {
    return not_found(fmt::format(
        "{}: not found; copy the model's tokenizer.json (a Hugging Face fast tokenizer) there",
        file.string()));
  }
  TextDocuments out;
  out.tokenizer_json = std::move(*text);
  out.tokenizer_name = file.string();
  out.tokenizer_config_name = (folder / "tokenizer_config.json").string();
  GLINT_TRY(out.tokenizer_config, read_json_if_there(out.tokenizer_config_name));
  out.preprocessor_config_name = (folder / "preprocessor_config.json").string();
  GLINT_TRY(out.preprocessor_config, read_json_if_there(out.preprocessor_config_name));
  out.chat_template_name = (folder / "chat_template.jinja").string();
  GLINT_TRY(out.chat_template, read_if_there(out.chat_template_name, kMaxTemplateBytes));
  return out;
}

}  // namespace

TextAssets::TextAssets() : state_(std::make_unique<State>()) {}
TextAssets::~TextAssets() = default;
const Tokenizer& TextAssets::tokenizer() const {
  return *state_->tokenizer;
}
bool TextAssets::has_template() const {
  return state_->chat_template != nullptr || state_->tool_chat_template != nullptr;
}
const std::string& TextAssets::template_source() const {
  return state_->template_source;
}
const std::vector<std::int32_t>& TextAssets::end_tokens() const {
  return state_->end_tokens;
}
ToolFormat TextAssets::tool_format() const {
  return state_->tool_format;
}
ReasoningFormat TextAssets::reasoning_format() const {
  return state_->reasoning_format;
}
bool TextAssets::takes_images() const {
  return state_->images.has_value();
}
const Json& TextAssets::sampling_defaults() const {
  return state_->sampling_defaults;
}

Result<std::shared_ptr<const TextAssets>> TextAssets::load(const std::filesystem::path& folder,
                                                           const Json& config,
                                                           const Json& generation_config,
                                                           const TextOptions& options) {
  GLINT_TRY(const TextDocuments documents, read_documents(folder));
  return from_documents(documents, config, generation_config, options);
}

Result<std::shared_ptr<const TextAssets>> TextAssets::from_documents(const TextDocuments& documents,
                                                                     const Json& config,
                                                                     const Json& generation_config,
                                                                     const TextOptions& options) {
  auto assets = std::shared_ptr<TextAssets>(new TextAssets());
  State& state = *assets->state_;
  GLINT_TRY(state.tokenizer,
            Tokenizer::from_json(documents.tokenizer_json, documents.tokenizer_name));
  GLINT_TRY_VOID(check_vocabulary(*state.tokenizer, documents, config));
  GLINT_TRY(state.end_tokens,
            find_end_tokens(*state.tokenizer, documents, config, generation_config));

  const std::string model_type = model_type_of(config);
  GLINT_TRY_VOID(state.read_templates(documents, options, model_type));
  GLINT_TRY_VOID(state.read_formats(documents, options, model_type));
  GLINT_TRY(state.sampling_defaults,
            resolve_sampling_defaults(generation_config, documents.generation_config_name,
                                      model_type, options.sampling_overrides));
  if (options.default_max_tokens < 0) {
    return invalid_argument(
        fmt::format("default_max_tokens: must be at least 0, not {}", options.default_max_tokens));
  }
  GLINT_TRY_VOID(state.read_images(documents, options));
  state.default_max_tokens = options.default_max_tokens;
  state.parse_special_in_messages = options.parse_special_in_messages;
  state.tool_grammar = options.tool_grammar;
  if (options.script) {
    GLINT_TRY(state.script,
              Script::parse(*options.script, *state.tokenizer, state.end_tokens.front()));
  }
  return std::shared_ptr<const TextAssets>(std::move(assets));
}

Status TextAssets::State::read_templates(const TextDocuments& documents, const TextOptions& options,
                                         const std::string& model_type) {
  GLINT_TRY(const TemplateTexts texts, find_templates(documents, options.chat_template));
  GLINT_TRY(chat_template, parse_if_there(texts.plain, texts.name, model_type));
  GLINT_TRY(tool_chat_template,
            parse_if_there(texts.tool_use, texts.name + " (tool_use)", model_type));
  template_source = texts.plain ? *texts.plain : texts.tool_use.value_or("");
  token_variables = find_token_variables(documents.tokenizer_config);
  return {};
}

Status TextAssets::State::read_images(const TextDocuments& documents, const TextOptions& options) {
  if (!options.images) return {};
  const ImageInput& input = *options.images;
  if (input.image_token < 0 || input.image_token >= tokenizer->vocab_size()) {
    return corrupt(fmt::format("{}: image_token_id {} is not in the vocabulary of {} tokens",
                               documents.config_name, input.image_token, tokenizer->vocab_size()));
  }
  ImageRules rules{
      .canvas = {}, .image_token = input.image_token, .max_images = options.max_images};
  rules.canvas.patch_size = input.patch_size;
  rules.canvas.temporal_patch_size = input.temporal_patch_size;
  rules.canvas.merge = input.merge;
  GLINT_TRY(rules.canvas, read_canvas_rules(documents.preprocessor_config,
                                            documents.preprocessor_config_name, rules.canvas));
  if (options.max_image_tokens > 0) {
    rules.canvas.max_tokens = std::min(rules.canvas.max_tokens, options.max_image_tokens);
    rules.canvas.min_tokens = std::min(rules.canvas.min_tokens, rules.canvas.max_tokens);
  }
  images = rules;
  return {};
}

Status TextAssets::State::read_formats(const TextDocuments& documents, const TextOptions& options,
                                       const std::string& model_type) {
  tool_format = options.tool_format.value_or(guess_tool_format(model_type, template_source));
  reasoning_format = options.reasoning_format.value_or(guess_reasoning_format(*tokenizer));
  answer_tokens = std::make_shared<const AnswerTokens>(
      find_answer_tokens(*tokenizer, end_tokens, tool_format, reasoning_format));
  prefix_tokens = glint::prefix_tokens(documents.tokenizer_json, documents.tokenizer_config,
                                       template_source, *tokenizer);
  start_token = find_start_token(*tokenizer, documents.tokenizer_config, end_tokens.front());
  return {};
}

Result<GrammarCompiler*> TextAssets::State::grammars() const {
  std::call_once(grammars_once_,
                 [this] { grammars_ = GrammarCompiler::make(*tokenizer, end_tokens); });
  if (!grammars_->has_value()) return grammars_->error();
  return (*grammars_)->get();
}

}  // namespace glint
