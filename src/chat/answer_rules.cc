#include "chat/answer_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "chat/messages.h"
#include "text/tool_grammar.h"

namespace glint {
namespace {

using GrammarPtr = std::shared_ptr<const Grammar>;
using Choice = ToolChoice::Kind;

Result<GrammarPtr> compile(const AnswerSetting& setting, const GrammarSource& source,
                           const std::string& field) {
  GLINT_TRY(GrammarCompiler * compiler, setting.grammars());
  auto grammar = compiler->compile(source);
  if (!grammar) return invalid_argument(field + ": " + grammar.error().message);
  return std::move(*grammar);
}

// One of these texts, and nothing else.
Result<std::string> choice_grammar(const AnswerFormat& format) {
  if (format.choices.empty()) return invalid_argument(format.field + ": needs at least one choice");
  std::string out = "start: ";
  for (std::size_t index = 0; index < format.choices.size(); ++index) {
    const std::string& choice = format.choices[index];
    if (choice.empty() || !is_utf8(choice)) {
      return invalid_argument(fmt::format("{}[{}]: must not be empty", format.field, index));
    }
    if (index > 0) out += " | ";
    append_json_string(out, choice);
  }
  return out + "\n";
}

Result<GrammarSource> format_source(const AnswerFormat& format) {
  GrammarSource source;
  source.lenient = !format.strict;
  source.any_whitespace = format.any_whitespace;
  switch (format.kind) {
    case AnswerFormat::Kind::kFree:
      break;
    case AnswerFormat::Kind::kJsonObject:
      source.text = format.schema.is_null() ? R"({"type":"object"})" : format.schema.dump();
      break;
    case AnswerFormat::Kind::kJsonSchema:
      source.text = format.schema.dump();
      break;
    case AnswerFormat::Kind::kRegex:
      source.kind = GrammarSource::Kind::kRegex;
      source.text = format.text;
      break;
    case AnswerFormat::Kind::kChoice: {
      source.kind = GrammarSource::Kind::kLark;
      GLINT_TRY(source.text, choice_grammar(format));
      break;
    }
    case AnswerFormat::Kind::kLark:
      source.kind = GrammarSource::Kind::kLark;
      source.text = format.text;
      break;
    case AnswerFormat::Kind::kGbnf:
      source.kind = GrammarSource::Kind::kGbnf;
      source.text = format.text;
      break;
  }
  return source;
}

const Json& name_of_tool(const Json& tool) {
  return *tool.find("function")->find("name");  // normalise_tools() saw to both
}

bool is_strict(const Json& tool) {
  const Json* strict = tool.find("function")->find("strict");
  return strict != nullptr && *strict == Json(true);
}

// The tools that may be called.
Result<Json> callable_tools(const Json& tools, const ToolChoice& choice) {
  if (choice.names.empty()) return tools;
  Json out(Json::Array{});
  for (const std::string& name : choice.names) {
    const auto is_it = [&](const Json& tool) { return name_of_tool(tool).as_string() == name; };
    if (!tools.is_array() || std::ranges::none_of(tools.as_array(), is_it)) {
      return invalid_argument(fmt::format("tool_choice: no tool is called '{}'", name));
    }
  }
  for (const Json& tool : tools.as_array()) {
    const auto found = std::ranges::find(choice.names, name_of_tool(tool).as_string());
    if (found != choice.names.end()) out.push_back(tool);
  }
  return out;
}

Error tools_error(Error error) {
  if (!error.message.starts_with("tools")) error.message = "tools: " + error.message;
  return error;
}

Result<GrammarPtr> try_tool_grammar(const Json& tools, const AnswerSetting& setting,
                                    const ToolGrammarOptions& options) {
  GrammarSource source;
  source.kind = GrammarSource::Kind::kLark;
  auto text = tool_call_grammar(tools, *setting.tokenizer, options);
  if (!text) return tools_error(std::move(text).error());
  source.text = std::move(*text);
  return compile(setting, source, "tools");
}

// A schema that no grammar can hold does not stop a call, unless the tool promises to be strict:
// then its name and markup are held, and the arguments are as the model writes them.
Result<GrammarPtr> tool_grammar(const Json& tools, const AnswerSetting& setting,
                                ToolGrammarOptions options) {
  auto grammar = try_tool_grammar(tools, setting, options);
  if (grammar || !options.strict_arguments || grammar.error().code == ErrorCode::kUnsupported ||
      std::ranges::any_of(tools.as_array(), is_strict)) {
    return grammar;
  }
  options.strict_arguments = false;
  return try_tool_grammar(tools, setting, options);
}

// Whether calls that are not forced are held to a grammar.
bool holds_calls(const ChatRequest& request, const Json& tools, const AnswerSetting& setting) {
  if (!request.tool_choice.names.empty()) return true;
  if (request.format.kind != AnswerFormat::Kind::kFree) return true;
  switch (setting.tool_grammar) {
    case TextOptions::ToolGrammar::kOff:
      return false;
    case TextOptions::ToolGrammar::kStrict:
      return std::ranges::any_of(tools.as_array(), is_strict);
    case TextOptions::ToolGrammar::kNames:
    case TextOptions::ToolGrammar::kAlways:
      break;
  }
  return true;
}

Status add_forced_call(const ChatRequest& request, const Json& tools, const AnswerSetting& setting,
                       AnswerRules& rules) {
  if (!tools.is_array() || tools.as_array().empty()) {
    return invalid_argument("tool_choice: a call can only be forced when there are tools");
  }
  if (setting.tool_format == ToolFormat::kNone) {
    return unsupported(
        "tool_choice: how this model writes calls is not known, so none can be forced; serve it "
        "with --tool-parser NAME");
  }
  const bool named = request.tool_choice.kind == Choice::kNamed;
  ToolGrammarOptions options;
  options.format = setting.tool_format;
  options.text_first = !named;
  options.max_calls = named || !request.parallel_tool_calls ? 1 : 0;
  GLINT_TRY(rules.content, tool_grammar(tools, setting, options));
  return {};
}

Status add_free_call(const ChatRequest& request, const Json& tools, const AnswerSetting& setting,
                     AnswerRules& rules) {
  if (!setting.tokens->call || !holds_calls(request, tools, setting)) return {};
  ToolGrammarOptions options;
  options.format = setting.tool_format;
  options.first_is_open = true;
  options.max_calls = request.parallel_tool_calls ? 0 : 1;
  options.strict_arguments = setting.tool_grammar == TextOptions::ToolGrammar::kAlways;
  auto grammar = tool_grammar(tools, setting, options);
  if (!grammar && grammar.error().code == ErrorCode::kUnsupported) return {};
  if (!grammar) return std::move(grammar).error();
  rules.call = std::move(*grammar);
  return {};
}

Status add_calls(const ChatRequest& request, const AnswerSetting& setting, AnswerRules& rules) {
  GLINT_TRY(const Json tools, normalise_tools(request.tools));
  const Choice choice = request.tool_choice.kind;
  const bool has_tools = !tools.is_null();
  if (choice == Choice::kNone) {
    rules.forbids_calls = has_tools && setting.tokens->call.has_value();
    return {};
  }
  GLINT_TRY(const Json callable, callable_tools(tools, request.tool_choice));
  rules.reads_calls = has_tools && setting.tool_format != ToolFormat::kNone;
  if (choice == Choice::kRequired || choice == Choice::kNamed) {
    return add_forced_call(request, callable, setting, rules);
  }
  return rules.reads_calls ? add_free_call(request, callable, setting, rules) : Status();
}

}  // namespace

Result<AnswerRules> answer_rules(const ChatRequest& request, const PreparedPrompt& prompt,
                                 const AnswerSetting& setting) {
  AnswerRules rules;
  rules.tokenizer = setting.tokenizer;
  rules.tokens = setting.tokens;
  if (request.thinking_budget && *request.thinking_budget < 0) {
    return invalid_argument(
        fmt::format("thinking_budget: must be at least 0, not {}", *request.thinking_budget));
  }
  if (!request.raw) {
    const bool thinks = setting.tokens->think && setting.tokens->think_end;
    rules.thinking_budget = request.thinking_budget;
    rules.starts_in_thinking = thinks && prompt.ends_in_thinking;
    rules.reads_thoughts = thinks;
    rules.offers_thought = thinks && !prompt.is_past_thinking;
    rules.leading_newlines = true;
    GLINT_TRY_VOID(add_calls(request, setting, rules));
  }
  if (request.format.kind != AnswerFormat::Kind::kFree && rules.content == nullptr) {
    GLINT_TRY(const GrammarSource source, format_source(request.format));
    GLINT_TRY(rules.content, compile(setting, source, request.format.field));
    rules.or_call = rules.call != nullptr;
    // A call that no grammar holds would leave the format.
    if (rules.reads_calls && !rules.or_call) rules.forbids_calls = true;
  }
  return rules;
}

}  // namespace glint
