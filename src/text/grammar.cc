#include "text/grammar.h"

#include <list>
#include <mutex>
#include <utility>

#include "base/json.h"
#include "text/grammar_limits.h"
#include "text/json_schema.h"
#include "text/rust_bridge.h"

namespace glint {
namespace {

constexpr std::size_t kMaxSchemaBytes = 64u << 10;
constexpr std::size_t kMaxTextBytes = 256u << 10;
constexpr std::size_t kKeptGrammars = 32;

Result<std::string> schema_text(const GrammarSource& source) {
  JsonLimits limits;
  limits.max_bytes = kMaxSchemaBytes;
  GLINT_TRY(Json schema, parse_json(source.text, limits));
  SchemaOptions options;
  options.lenient = source.lenient;
  options.any_whitespace = source.any_whitespace;
  GLINT_TRY(Json closed, closed_schema(schema, schema, options));
  return closed.dump();
}

// What the crate compiles, and as what.
Result<std::pair<RustGrammar::Kind, std::string>> crate_source(const GrammarSource& source) {
  const bool is_schema = source.kind == GrammarSource::Kind::kJsonSchema;
  const std::size_t most = is_schema ? kMaxSchemaBytes : kMaxTextBytes;
  if (source.text.size() > most) {
    return invalid_argument("the grammar has " + std::to_string(source.text.size()) +
                            " bytes, and at most " + std::to_string(most) + " are allowed");
  }
  if (!is_utf8(source.text)) return invalid_argument("the grammar is not UTF-8");
  switch (source.kind) {
    case GrammarSource::Kind::kJsonSchema: {
      GLINT_TRY(std::string text, schema_text(source));
      return std::pair(RustGrammar::Kind::kJsonSchema, std::move(text));
    }
    case GrammarSource::Kind::kRegex:
      GLINT_TRY_VOID(check_regex_limits(source.text));
      return std::pair(RustGrammar::Kind::kRegex, source.text);
    case GrammarSource::Kind::kLark:
      GLINT_TRY_VOID(check_lark_limits(source.text));
      return std::pair(RustGrammar::Kind::kLark, source.text);
    case GrammarSource::Kind::kGbnf: {
      GLINT_TRY(std::string text, gbnf_to_lark(source.text));
      GLINT_TRY_VOID(check_lark_limits(text));
      return std::pair(RustGrammar::Kind::kLark, std::move(text));
    }
  }
  return internal_error("a grammar of no kind");
}

std::string key_of(const GrammarSource& source) {
  const int flags = static_cast<int>(source.kind) * 4 + source.lenient * 2 + source.any_whitespace;
  return std::to_string(flags) + ":" + source.text;
}

}  // namespace

struct GrammarMatcher::State {
  RustMatcher::Place place() const {
    const RustMatcher::Place broken{.complete = false, .stopped = true};
    return rust.has_value() ? rust->place().value_or(broken) : broken;
  }

  Result<RustMatcher> rust;  // an error comes out of every call
  std::vector<std::uint32_t> words;
};

struct Grammar::State {
  RustGrammar rust;
  std::size_t num_words = 0;
};

struct GrammarCompiler::State {
  struct Kept {
    std::string key;
    std::shared_ptr<const Grammar> grammar;
  };

  std::shared_ptr<const Grammar> find(const std::string& key) {
    const std::lock_guard lock(mutex);
    for (auto entry = kept.begin(); entry != kept.end(); ++entry) {
      if (entry->key != key) continue;
      kept.splice(kept.begin(), kept, entry);
      return entry->grammar;
    }
    return nullptr;
  }

  void keep(std::string key, std::shared_ptr<const Grammar> grammar) {
    const std::lock_guard lock(mutex);
    kept.push_front({std::move(key), std::move(grammar)});
    if (kept.size() > kKeptGrammars) kept.pop_back();
  }

  RustVocabulary vocabulary;
  std::size_t num_words = 0;
  std::mutex mutex;
  std::list<Kept> kept;  // the last used first
};

GrammarMatcher::GrammarMatcher(std::unique_ptr<State> state) : state_(std::move(state)) {}
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
GrammarMatcher::~GrammarMatcher() = default;

Result<std::span<const std::uint32_t>> GrammarMatcher::mask() {
  if (!state_->rust.has_value()) return state_->rust.error();
  GLINT_TRY_VOID(state_->rust->mask(state_->words));
  return std::span<const std::uint32_t>(state_->words);
}

Status GrammarMatcher::accept(std::int32_t token) {
  if (!state_->rust.has_value()) return state_->rust.error();
  GLINT_TRY(const bool accepted, state_->rust->accept(token));
  if (accepted) return {};
  return invalid_argument("token " + std::to_string(token) + " is not allowed by the grammar here");
}

Status GrammarMatcher::rollback(int count) {
  if (!state_->rust.has_value()) return state_->rust.error();
  return state_->rust->rollback(count);
}

Result<int> GrammarMatcher::num_allowed(std::span<const std::int32_t> tokens) {
  if (!state_->rust.has_value()) return state_->rust.error();
  return state_->rust->num_allowed(tokens);
}

bool GrammarMatcher::is_complete() const {
  return state_->place().complete;
}

bool GrammarMatcher::is_stopped() const {
  return state_->place().stopped;
}

Grammar::Grammar(std::unique_ptr<State> state) : state_(std::move(state)) {}
Grammar::~Grammar() = default;

GrammarMatcher Grammar::start() const {
  return GrammarMatcher(std::make_unique<GrammarMatcher::State>(
      GrammarMatcher::State{state_->rust.start(), std::vector<std::uint32_t>(state_->num_words)}));
}

GrammarCompiler::GrammarCompiler() = default;
GrammarCompiler::~GrammarCompiler() = default;

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::make(
    const Tokenizer& tokenizer, std::span<const std::int32_t> end_tokens) {
  std::vector<RustVocabulary::Token> tokens(static_cast<std::size_t>(tokenizer.vocab_size()));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    tokens[i].bytes = tokenizer.token_bytes(id);
    // Text that merely looks like an added token is not one, and no text may become one.
    tokens[i].marker = tokenizer.is_added(id);
  }
  GLINT_TRY(RustVocabulary vocabulary, RustVocabulary::make(tokens, end_tokens));
  std::unique_ptr<GrammarCompiler> compiler(new GrammarCompiler());
  compiler->state_.reset(new State{.vocabulary = std::move(vocabulary),
                                   .num_words = (tokens.size() + 31) / 32,
                                   .mutex = {},
                                   .kept = {}});
  return compiler;
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const GrammarSource& source) {
  std::string key = key_of(source);
  if (std::shared_ptr<const Grammar> kept = state_->find(key)) return kept;
  GLINT_TRY(const auto kind_and_text, crate_source(source));
  GLINT_TRY(RustGrammar rust,
            state_->vocabulary.compile(kind_and_text.first, kind_and_text.second));
  std::shared_ptr<const Grammar> grammar(new Grammar(
      std::make_unique<Grammar::State>(Grammar::State{std::move(rust), state_->num_words})));
  state_->keep(std::move(key), grammar);
  return grammar;
}

}  // namespace glint
