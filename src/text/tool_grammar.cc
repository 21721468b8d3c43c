#include "text/tool_grammar.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "text/json_schema.h"
#include "text/lark_text.h"
#include "text/tool_arguments.h"

namespace glint {
namespace {

constexpr std::string_view kAnyText = "/(?s:.*)/";
constexpr int kMaxUnion = 4;        // unions within unions
constexpr int kMaxReferences = 16;  // one leading to the next

// One tool, whichever API it came through.
struct ToolView {
  std::string name;
  Json parameters;  // null: none
  bool strict = false;
};

Result<ToolView> view_of(const Json& tool) {
  const Json* inner = tool.find("function");
  const Json& function = inner != nullptr ? *inner : tool;
  const Json* name = function.find("name");
  if (name == nullptr || !name->is_string() || name->as_string().empty()) {
    return invalid_argument("tools: a tool has no name");
  }
  ToolView view{.name = name->as_string(), .parameters = Json(), .strict = false};
  for (const char* key : {"parameters", "input_schema"}) {
    const Json* parameters = function.find(key);
    if (parameters != nullptr) view.parameters = *parameters;
  }
  if (!view.parameters.is_null() && !view.parameters.is_object()) {
    return invalid_argument("tools: the parameters of \"" + view.name + "\" are not an object");
  }
  for (const Json* at : {&function, &tool}) {
    const Json* strict = at->find("strict");
    if (strict != nullptr && strict->is_bool() && strict->as_bool()) view.strict = true;
  }
  return view;
}

// Markup as the tokenizer reads it: markers that are tokens, and text between them.
struct Piece {
  std::optional<std::int32_t> token;
  std::string text;

  std::string lark() const {
    return token ? "<[" + std::to_string(*token) + "]>" : lark_literal(text);
  }
};
using Markup = std::vector<Piece>;

std::string lark_of(const Markup& markup) {
  std::string out;
  for (const Piece& piece : markup) out += (out.empty() ? "" : " ") + piece.lark();
  return out;
}

// What stands around and between calls.
struct FormatMarkup {
  std::string section_open;
  std::string section_close;
  std::string call_open;
  std::string between_calls;  // Lark
};

FormatMarkup markup_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::kGlm45:
      return {"", "", "<tool_call>", "\"\\n\"?"};
    case ToolFormat::kGlm47:
      return {"", "", "<tool_call>", ""};
    case ToolFormat::kDeepSeekV3:
    case ToolFormat::kDeepSeekV31:
      return {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
              "\"\\n\"?"};
    case ToolFormat::kDeepSeekV32:
      return {"<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", "<｜DSML｜invoke name=\"",
              ""};
    case ToolFormat::kKimiK2:
      return {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
              ""};
    case ToolFormat::kNone:
      break;
  }
  return {};
}

const Json* schema_property(const Json& parameters, const std::string& key) {
  const Json* properties = parameters.find("properties");
  return properties == nullptr ? nullptr : properties->find(key);
}

// A reference, or an allOf of one part, stands for what it leads to.
const Json& resolved(const Json& schema, const Json& root) {
  const Json* at = &schema;
  for (int i = 0; i < kMaxReferences; ++i) {
    const Json* all_of = at->find("allOf");
    const Json* reference = at->find("$ref");
    if (all_of != nullptr && all_of->is_array() && all_of->as_array().size() == 1) {
      at = &all_of->as_array().front();
    } else if (reference != nullptr && reference->is_string()) {
      const Json* target = find_reference(root, reference->as_string());
      if (target == nullptr) return *at;
      at = target;
    } else {
      return *at;
    }
  }
  return *at;
}

// What "type" says; unions are looked into elsewhere.
JsonTypes declared_types(const Json& schema) {
  constexpr std::pair<std::string_view, unsigned> kBits[] = {
      {"string", JsonTypes::kString}, {"integer", JsonTypes::kInteger},
      {"number", JsonTypes::kNumber}, {"boolean", JsonTypes::kBoolean},
      {"null", JsonTypes::kNull},     {"array", JsonTypes::kArray},
      {"object", JsonTypes::kObject}};
  unsigned bits = 0;
  const auto add = [&](const Json& name) {
    for (const auto& [type, bit] : kBits) {
      if (name.is_string() && name.as_string() == type) bits |= bit;
    }
  };
  const Json* type = schema.find("type");
  if (type == nullptr) return JsonTypes::unknown();
  if (type->is_array()) {
    std::ranges::for_each(type->as_array(), add);
  } else {
    add(*type);
  }
  return JsonTypes(bits);
}

std::optional<std::int64_t> count_in(const Json& schema, const char* key) {
  const Json* value = schema.find(key);
  if (value == nullptr || !value->is_int() || value->as_int() < 0) return std::nullopt;
  return std::min<std::int64_t>(value->as_int(), 1 << 20);
}

// The text of a regular expression, or nothing where its anchors are not at its ends.
std::optional<std::string> whole_text_regex(const std::string& pattern) {
  std::string body = pattern;
  const bool from_start = body.starts_with("^");
  if (from_start) body.erase(0, 1);
  const std::size_t before = body.find_last_not_of('\\', body.size() < 2 ? 0 : body.size() - 2);
  const bool to_end = body.ends_with("$") && (body.size() - before) % 2 == 0;
  if (to_end) body.pop_back();
  // An anchor of one alternative is not one of the others.
  if ((from_start || to_end) && body.find('|') != std::string::npos &&
      !(body.starts_with("(") && body.ends_with(")"))) {
    return std::nullopt;
  }
  std::string out = from_start ? "/" : "/(?s:.*)";
  out += "(?:" + lark_regex_body(body) + ")";
  return out + (to_end ? "/" : "(?s:.*)/");
}

class ToolGrammarWriter {
 public:
  ToolGrammarWriter(const Json& tools, const Tokenizer& tokenizer,
                    const ToolGrammarOptions& options)
      : tools_(tools), tokenizer_(tokenizer), options_(options) {}

  Result<std::string> write();

 private:
  Markup markup(std::string_view text) const;
  std::string marker(std::string_view text) const { return lark_of(markup(text)); }
  std::string fresh(std::string_view prefix) {
    return std::string(prefix) + std::to_string(next_++);
  }
  std::string terminal(const std::string& body);  // its name
  std::string text_before(const std::string& text, const Markup& close);
  std::string line_break() const {
    return options_.format == ToolFormat::kGlm47 ? "" : " \"\\n\"?";
  }

  Result<std::string> start_rule();
  Result<Markup> head() const;
  std::string more_calls() const;

  Result<std::string> call_body(const ToolView& tool);
  Result<std::string> json_arguments(const ToolView& tool);
  Result<std::string> element_arguments(const ToolView& tool);
  Result<std::string> held_elements(const ToolView& tool);
  std::string free_elements(const ToolView& tool);
  std::string element(const std::string& key, const std::string& value);
  Result<std::string> values(const ToolView& tool, const std::string& key);
  Status add_values(const ToolView& tool, const Json& schema, JsonTypes types, int depth,
                    std::vector<std::string>& out);
  Result<std::string> text_body(const ToolView& tool, const Json& schema) const;
  Result<std::string> json_of(const ToolView& tool, const Json& schema);
  std::string json_rule(const std::string& schema);  // its name
  // How a value of text or of JSON begins behind its key, and what closes it.
  std::string text_value(const std::string& text);
  std::string literal_value(const std::string& text) const;
  std::string json_value(const std::string& json) const;
  bool is_dsml() const { return options_.format == ToolFormat::kDeepSeekV32; }
  Markup value_close() const { return markup(is_dsml() ? "</｜DSML｜parameter>" : "</arg_value>"); }

  bool is_held(const ToolView& tool) const { return options_.strict_arguments || tool.strict; }

  const Json& tools_;
  const Tokenizer& tokenizer_;
  const ToolGrammarOptions& options_;
  std::string rules_;
  std::map<std::string, std::string> terminals_;  // names by body
  std::map<std::string, std::string> schemas_;    // names by text
  int next_ = 0;
};

Markup ToolGrammarWriter::markup(std::string_view text) const {
  Markup out;
  for (const std::int32_t id : tokenizer_.encode(text)) {
    if (tokenizer_.is_added(id)) {
      out.push_back({.token = id, .text = {}});
    } else {
      if (out.empty() || out.back().token) out.push_back({.token = {}, .text = {}});
      out.back().text += tokenizer_.token_bytes(id);
    }
  }
  return out;
}

std::string ToolGrammarWriter::terminal(const std::string& body) {
  const auto [found, is_new] = terminals_.try_emplace(body);
  if (is_new) {
    found->second = fresh("T");
    rules_ += found->second + ": " + body + "\n";
  }
  return found->second;
}

// `text`, the body of a terminal, and what closes it. Text that runs into text has no border that
// a lexer would see: it ends where a marker follows, or with the first of the closing text.
std::string ToolGrammarWriter::text_before(const std::string& text, const Markup& close) {
  if (close.empty()) return terminal(text);
  const auto marker =
      std::ranges::find_if(close, [](const Piece& piece) { return piece.token.has_value(); });
  if (marker == close.end()) {
    std::string name = fresh("r");
    rules_ += name + "[suffix=" + close.front().lark() + "]: " + text + "\n";
    return name;
  }
  const std::string whole =
      marker == close.begin() ? text : "(" + text + ") " + close.front().lark();
  return terminal(whole) + " " + lark_of({marker, close.end()});
}

Result<std::string> ToolGrammarWriter::write() {
  if (!tools_.is_array() || tools_.as_array().empty()) {
    return invalid_argument("tools: there are none that may be called");
  }
  if (options_.min_calls < 0 ||
      (options_.max_calls > 0 && options_.max_calls < options_.min_calls)) {
    return invalid_argument("tools: the most calls are fewer than the least");
  }
  if (options_.format == ToolFormat::kNone) {
    return unsupported("this model has no markup for tool calls");
  }
  std::string bodies;
  for (const Json& tool : tools_.as_array()) {
    GLINT_TRY(const ToolView view, view_of(tool));
    GLINT_TRY(std::string body, call_body(view));
    const std::string name = fresh("f");
    rules_ += name + ": " + body + "\n";
    bodies += (bodies.empty() ? "" : " | ") + name;
  }
  GLINT_TRY(std::string start, start_rule());
  return start + "call: " + bodies + "\n" + rules_;
}

// From the beginning of the first call to where its body begins.
Result<Markup> ToolGrammarWriter::head() const {
  const FormatMarkup format = markup_of(options_.format);
  Markup head = markup(format.section_open + format.call_open);
  if (!options_.first_is_open) return head;
  const std::optional<std::int32_t> opening = call_token(options_.format, tokenizer_);
  const auto opened = std::ranges::find_if(
      head, [&](const Piece& piece) { return piece.token && piece.token == opening; });
  if (opened == head.end()) return unsupported("the tokenizer has no token that opens a tool call");
  head.erase(head.begin(), opened + 1);
  return head;
}

std::string ToolGrammarWriter::more_calls() const {
  const int least = std::max(options_.min_calls, 1) - 1;
  const int most = options_.max_calls - 1;
  if (most == 0) return "";
  const FormatMarkup format = markup_of(options_.format);
  std::string count = least == 0 ? "*" : "{" + std::to_string(least) + ",}";
  if (most > 0) count = "{" + std::to_string(least) + "," + std::to_string(most) + "}";
  return " (" + format.between_calls + " " + marker(format.call_open) + " call)" + count;
}

Result<std::string> ToolGrammarWriter::start_rule() {
  GLINT_TRY(const Markup head, this->head());
  const std::string section_close = markup_of(options_.format).section_close;
  const std::string calls =
      " call" + more_calls() +
      (section_close.empty() ? "" : line_break() + " " + marker(section_close));
  if (options_.first_is_open) return "start: " + lark_of(head) + calls + "\n";
  std::string start = "start: ";
  if (options_.text_first) {
    start += text_before(std::string(kAnyText), head) + calls;
    if (options_.min_calls == 0) start += " | " + terminal(std::string(kAnyText));
  } else {
    const std::string between = markup_of(options_.format).between_calls;
    start += between + " " + lark_of(head) + calls;
    if (options_.min_calls == 0 && options_.answer_schema.is_null()) start += " | \"\"";
  }
  if (!options_.answer_schema.is_null()) {
    GLINT_TRY(const Json closed, closed_schema(options_.answer_schema, options_.answer_schema, {}));
    start += " | %json " + closed.dump();
  }
  return start + "\n";
}

Result<std::string> ToolGrammarWriter::call_body(const ToolView& tool) {
  const std::string name = lark_literal(tool.name);
  switch (options_.format) {
    case ToolFormat::kGlm45:
    case ToolFormat::kGlm47: {
      GLINT_TRY(const std::string arguments, element_arguments(tool));
      return name + line_break() + arguments + " " + marker("</tool_call>");
    }
    case ToolFormat::kDeepSeekV32: {
      GLINT_TRY(const std::string arguments, element_arguments(tool));
      return name + " \"\\\">\" \"\\n\"?" + arguments + " " + marker("</｜DSML｜invoke>") +
             " \"\\n\"?";
    }
    case ToolFormat::kDeepSeekV3: {
      GLINT_TRY(const std::string arguments, json_arguments(tool));
      return "\"function\" " + marker("<｜tool▁sep｜>") + " " +
             lark_literal(tool.name + "\n```json\n") + " " + arguments + " \"\\n```\" " +
             marker("<｜tool▁call▁end｜>");
    }
    case ToolFormat::kDeepSeekV31: {
      GLINT_TRY(const std::string arguments, json_arguments(tool));
      return name + " " + marker("<｜tool▁sep｜>") + " " + arguments + " " +
             marker("<｜tool▁call▁end｜>");
    }
    case ToolFormat::kKimiK2: {
      GLINT_TRY(const std::string arguments, json_arguments(tool));
      return lark_literal("functions." + tool.name + ":") + " /[0-9]{1,4}/ " +
             marker("<|tool_call_argument_begin|>") + " " + arguments + " " +
             marker("<|tool_call_end|>");
    }
    case ToolFormat::kNone:
      break;
  }
  return unsupported("this model has no markup for tool calls");
}

// Tools share most of their schemas: each is compiled once.
std::string ToolGrammarWriter::json_rule(const std::string& schema) {
  const auto [found, is_new] = schemas_.try_emplace(schema);
  if (is_new) {
    found->second = fresh("j");
    rules_ += found->second + ": %json " + schema + "\n";
  }
  return found->second;
}

Result<std::string> ToolGrammarWriter::json_of(const ToolView& tool, const Json& schema) {
  SchemaOptions options;
  options.lenient = !tool.strict;
  Result<Json> closed = closed_schema(schema, tool.parameters, options);
  if (!closed.has_value()) {
    Error error = std::move(closed).error();
    error.message = "tools: \"" + tool.name + "\": " + error.message;
    return error;
  }
  return json_rule(closed->dump());
}

Result<std::string> ToolGrammarWriter::json_arguments(const ToolView& tool) {
  if (!is_held(tool) || tool.parameters.is_null()) return json_rule(R"({"type":"object"})");
  Json parameters = tool.parameters;
  if (parameters.find("type") == nullptr && parameters.find("$ref") == nullptr)
    parameters.set("type", "object");
  return json_of(tool, parameters);
}

Result<std::string> ToolGrammarWriter::element_arguments(const ToolView& tool) {
  const Json& parameters = resolved(tool.parameters, tool.parameters);
  const Json* properties = parameters.find("properties");
  const bool has_properties = properties != nullptr && properties->is_object();
  if (!is_held(tool)) return free_elements(tool);
  if (has_properties || tool.parameters.is_null()) return held_elements(tool);
  if (tool.strict) {
    return invalid_argument("tools: \"" + tool.name +
                            "\" is strict and its parameters have no \"properties\", which this "
                            "model's form of calls needs");
  }
  return free_elements(tool);
}

// Those that are required come first.
Result<std::string> ToolGrammarWriter::held_elements(const ToolView& tool) {
  const Json& parameters = resolved(tool.parameters, tool.parameters);
  std::vector<std::string> required;
  const Json* list = parameters.find("required");
  if (list != nullptr && list->is_array()) {
    for (const Json& key : list->as_array()) {
      if (key.is_string()) required.push_back(key.as_string());
    }
  }
  const auto is_required = [&](const std::string& key) {
    return std::ranges::find(required, key) != required.end();
  };
  std::string out;
  std::string optional;
  const Json* properties = parameters.find("properties");
  if (properties != nullptr && properties->is_object()) {
    for (const auto& [key, schema] : properties->as_object()) {
      GLINT_TRY(const std::string value, values(tool, key));
      if (is_required(key)) {
        out += element(key, value);
      } else {
        optional += " (" + element(key, value) + ")?";
      }
    }
  }
  for (const std::string& key : required) {
    if (schema_property(parameters, key) != nullptr) continue;
    GLINT_TRY(const std::string value, values(tool, key));
    out += element(key, value);
  }
  return out + optional;
}

// Names and markup only. Each declared key may be said as often as there are keys.
std::string ToolGrammarWriter::free_elements(const ToolView& tool) {
  const Json& parameters = resolved(tool.parameters, tool.parameters);
  const Json* properties = parameters.find("properties");
  std::string value = text_value(std::string(kAnyText));
  if (is_dsml()) value = "(" + value + " | " + json_value(json_rule("{}")) + ")";
  if (properties == nullptr || !properties->is_object() || properties->as_object().empty()) {
    if (properties != nullptr || tool.parameters.is_null()) return "";
    const std::string key = fresh("k");
    const Markup end = markup(is_dsml() ? "\" string=\"" : "</arg_key>");
    rules_ += key + ": " + text_before("/[^\\n<>\"]+/", end) + "\n";
    return " (" + marker(is_dsml() ? "<｜DSML｜parameter name=\"" : "<arg_key>") + " " + key +
           (is_dsml() ? "" : line_break() + " " + marker("<arg_value>")) + " " + value +
           line_break() + ")*";
  }
  std::string keys;
  for (const auto& [key, schema] : properties->as_object()) {
    keys += (keys.empty() ? "" : " | ") + element(key, value);
  }
  return " (" + keys + "){0," + std::to_string(properties->as_object().size()) + "}";
}

std::string ToolGrammarWriter::element(const std::string& key, const std::string& value) {
  const std::string lark_key = lark_literal(key);
  if (is_dsml()) {
    return " " + marker("<｜DSML｜parameter name=\"") + " " + lark_key + " \"\\\" string=\\\"\" " +
           value + line_break();
  }
  return " " + marker("<arg_key>") + " " + lark_key + " " + marker("</arg_key>") + line_break() +
         " " + marker("<arg_value>") + " " + value + line_break();
}

std::string ToolGrammarWriter::text_value(const std::string& text) {
  const std::string closed = text_before(text, value_close());
  return is_dsml() ? "\"true\\\">\" " + closed : closed;
}

std::string ToolGrammarWriter::literal_value(const std::string& text) const {
  const std::string closed = lark_literal(text) + " " + lark_of(value_close());
  return is_dsml() ? "\"true\\\">\" " + closed : closed;
}

std::string ToolGrammarWriter::json_value(const std::string& json) const {
  const std::string closed = json + " " + lark_of(value_close());
  return is_dsml() ? "\"false\\\">\" " + closed : closed;
}

// All that may stand as the value of `key`, with what closes it.
Result<std::string> ToolGrammarWriter::values(const ToolView& tool, const std::string& key) {
  const Json& parameters = resolved(tool.parameters, tool.parameters);
  const Json* schema = schema_property(parameters, key);
  const Json anything = Json(Json::Object());
  const JsonTypes types = argument_types(tools_, tool.name, key);
  std::vector<std::string> options;
  GLINT_TRY_VOID(add_values(tool, schema == nullptr ? anything : *schema, types, 0, options));
  std::string out;
  for (const std::string& option : options) out += (out.empty() ? "(" : " | ") + option;
  return out + ")";
}

Status ToolGrammarWriter::add_values(const ToolView& tool, const Json& schema, JsonTypes types,
                                     int depth, std::vector<std::string>& out) {
  const Json& inner = resolved(schema, tool.parameters);
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json* parts = inner.find(key);
    if (parts == nullptr || !parts->is_array() || depth >= kMaxUnion) continue;
    for (const Json& part : parts->as_array()) {
      const JsonTypes part_types = declared_types(resolved(part, tool.parameters));
      GLINT_TRY_VOID(add_values(tool, part, part_types, depth + 1, out));
    }
    return {};
  }
  std::vector<Json> literals;
  if (const Json* list = inner.find("enum"); list != nullptr && list->is_array())
    literals = list->as_array();
  if (const Json* one = inner.find("const"); one != nullptr) literals = {*one};
  for (const Json& literal : literals) {
    const std::string text = literal.is_string() ? literal.as_string() : literal.dump();
    out.push_back(literal.is_string() ? literal_value(text) : json_value(lark_literal(text)));
  }
  if (!literals.empty()) return {};
  bool any_text = false;
  if (types.is_unknown() || types.has(JsonTypes::kString)) {
    GLINT_TRY(const std::string body, text_body(tool, inner));
    any_text = body == kAnyText;
    out.push_back(text_value(body));
  }
  // Where any text may stand, JSON may, but where the form tells them apart.
  if (types.only_string() || (any_text && !is_dsml())) return {};
  GLINT_TRY(const std::string json, json_of(tool, schema));
  out.push_back(json_value(json));
  return {};
}

// The body of a terminal: strings that the schema allows. Their format is not looked at.
Result<std::string> ToolGrammarWriter::text_body(const ToolView& tool, const Json& schema) const {
  std::string body;
  const Json* pattern = schema.find("pattern");
  if (pattern != nullptr && pattern->is_string()) {
    const std::optional<std::string> regex = whole_text_regex(pattern->as_string());
    if (!regex && tool.strict) {
      return invalid_argument("tools: \"" + tool.name + "\": the pattern " + pattern->dump() +
                              " has ^ or $ where only part of it is bound");
    }
    body = regex.value_or("");
  }
  const std::int64_t least = count_in(schema, "minLength").value_or(0);
  const std::optional<std::int64_t> most = count_in(schema, "maxLength");
  if (least > 0 || most) {
    if (!body.empty()) body += " & ";
    body += "/(?s:.{" + std::to_string(least) + "," + (most ? std::to_string(*most) : "") + "})/";
  }
  return body.empty() ? std::string(kAnyText) : body;
}

}  // namespace

Result<std::string> tool_call_grammar(const Json& tools, const Tokenizer& tokenizer,
                                      const ToolGrammarOptions& options) {
  return ToolGrammarWriter(tools, tokenizer, options).write();
}

}  // namespace glint
