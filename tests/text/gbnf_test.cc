#include <vector>

#include "grammar_fixture.h"

namespace glint {
namespace {

struct GbnfCase {
  const char* name;
  const char* gbnf;
  std::vector<const char*> valid;
  std::vector<const char*> invalid;
};

const std::vector<GbnfCase>& gbnf_cases() {
  static const std::vector<GbnfCase> cases = {
      {"json",
       R"g(
root ::= blank json
json ::= ( map | list | text | amount | "null" | "true" | "false" ) blank
map ::= "{" blank ( pair
                    ( "," blank pair )*
                  )? "}"
pair ::= text blank ":" blank json
list ::= "[" blank (json ("," blank json)*)? "]"
text ::= "\"" letter* "\""
letter ::= [^\x00-\x1f"\\\x7f] | "\\" ( ["\\/bfnrt] | "u" hex{4} ) # one of them
hex ::= [0-9a-fA-F]
amount ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]{1,3})?
blank ::= [ \t\n]{0,40}
)g",
       {R"({})", R"({"a": 1})", R"({"a":[1, 2.5,"x\n\u00e9"],"b":{"c":null}} )",
        "{\n  \"k\":true}"},
       {R"([1,])", R"({"a":})", R"({"a":01})", R"({a:1})", R"({"a":1)", "{\"a\":\"\n\"}"}},
      // Blanks end a term, and a line break is a blank that also ends an equation.
      {"arithmetic",
       R"g(
root ::= equation+
equation ::= sum "=" blank factor "\n"
sum ::= factor (sign factor)*
sign ::= [*/+-]
factor ::= (name | digits | "(" blank sum ")") blank
name ::= [a-z] ([a-z0-9] | "_")*
digits ::= [0-9]+
blank ::= [ \t\n]*
)g",
       {"1+2=3\n", "x1 *(y -2)=z\n", "((1))=1\na=b\n"},
       {"1+=3\n", "1+2\n", "(1=1\n", "1a+2=b\n"}},
      {"list",
       R"g(root ::= ("- " line)+
line ::= rest-of-line "\n"
rest-of-line ::= [^\n\r\u2028\x85]+ # what does not break a line)g",
       {"- one\n", "- one\n- zwei ü\n"},
       {"one\n", "- \n", "- one", "- a\u2028b\n"}},
      {"chess",
       R"g(
root ::= turn{2,}
turn ::= [1-9] [0-9]? ". " half " " half "\n" # white, then black
half ::= ( castling | piece | footman ) ("+" | "#")?
castling ::= "O-O" ("-O")?
piece ::= [KQRBN] column? row? "x"? square
footman ::= (column "x")? square ("=" [QRBN])?
square ::= column row
column ::= [a-h]
row ::= [1-8]
)g",
       {"1. e4 e5\n2. Nf3 Nc6\n", "1. d4 d5\n2. O-O-O exd8=Q+\n"},
       {"1. e4 e5\n", "1. e9 e5\n2. a1 a1\n", "0. e4 e5\n2. Nf3 Nc6\n"}},
      {"recursion at the end",
       R"g(root ::= "<" list ">"
list ::= [a-z] list | [a-z] | digits
digits ::= ([0-9] digits)?)g",
       {"<abc>", "<a>", "<>", "<12>", "<ab12>"},
       {"<1a>", "<", "ab"}},
      {"brackets",
       R"g(root ::= "(" root ")" root | "[" root "]" | "")g",
       {"", "()", "([])()", "((()))()", "[()]"},
       {"(", ")(", "([)]", "[][]"}},
      {"mutual recursion",
       R"g(root ::= even
even ::= "" | "a" odd
odd ::= "b" even)g",
       {"", "ab", "abab"},
       {"a", "aba", "ba"}},
      {"escapes and repetition",
       R"g(root ::= "\x41\u00e9\U0001F600\t\"\\" [\]x-]{2} "z"{0,2} ("q" | "r"){1,} .{2,3} "end"?)g",
       {"Aé😀\t\"\\]-qr!!", "Aé😀\t\"\\xxzzq\n\n", "Aé😀\t\"\\xxq123end"},
       {"Aé😀\t\"\\x-", "Aé😀\t\"\\xxzzzqab", "Aé😀\t\"\\xxab"}},
      {"bars on lines of their own",
       "root ::= \"a\"\n  | \"b\" # two\n\n  | \"c\"\r\nrest ::= \"d\"\r\n",
       {"a", "b", "c"},
       {"d", "ab"}},
      {"negation", R"g(root ::= [^a-c\n]+)g", {"xyz", "é1"}, {"xa", "x\n", ""}},
  };
  return cases;
}

TEST(gbnf, grammars_allow_their_sentences_and_no_others) {
  for (const GbnfCase& entry : gbnf_cases()) {
    const auto grammar = compile_demo(GrammarSource::Kind::kGbnf, entry.gbnf);
    ASSERT_NE(grammar, nullptr) << entry.name;
    for (const char* text : entry.valid) {
      EXPECT_EQ(walk(*grammar, std::string_view(text)), "complete") << entry.name << ": " << text;
    }
    for (const char* text : entry.invalid)
      EXPECT_FALSE(fits(*grammar, text)) << entry.name << ": " << text;
  }
}

TEST(gbnf, errors_name_line_and_construct) {
  const struct {
    const char* gbnf;
    const char* message;
  } cases[] = {
      {"", "no rule \"root\""},
      {"rot ::= \"a\"", "no rule \"root\""},
      {"root ::= \"a\"\nb = \"c\"", "line 2: \"::=\" is expected after b"},
      {"root ::= x", "the rule \"x\" is used and not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule \"root\" is defined twice"},
      {"root ::= \"a", "line 1: a literal has no end"},
      {"root ::= [a-", "a character class has no end"},
      {"root ::= [z-a]", "ends before it begins"},
      {"root ::= []", "a character class is empty"},
      {"root ::= (\"a\"\n\n", "')' is missing before the end"},
      {"root ::= \"a\")", "')' is out of place"},
      {"root ::= \"a\"{3,2}", "ends before it begins"},
      {"root ::= \"a\"{,2}", "a count is expected"},
      {"root ::= \"a\"{99999999999}", "a count is above 100000"},
      {"root ::= \"a\"{2", "'}' is missing"},
      {"root ::= *", "'*' is out of place"},
      {"root ::= \"\\q\"", "the escape \\q is unknown"},
      {"root ::= \"\\x4\"", "lacks hexadecimal digits"},
      {"root ::= \"\\uD800\"", "names no character"},
      {"root ::= \"\\U00110000\"", "names no character"},
      {"root ::= \"\\", "the escape \\"},
      {"root ::= <[1000]> \"a\"", "token matchers (<...>) are not supported"},
      {"root ::= !<think>", "token matchers (<...>) are not supported"},
      {"root ::= \"\xFF\"", "not UTF-8"},
      {"root ::= ((((((((((((((((((((((((\"a\"))))))))))))))))))))))))", "nested deeper than 20"},
      {"root ::= \"a\"*****", "too many repetitions"},
      {"root ::= \"a\" é", "'é' is out of place"},
  };
  for (const auto& entry : cases) {
    const auto lark = gbnf_to_lark(entry.gbnf);
    ASSERT_FALSE(lark.has_value()) << entry.gbnf;
    EXPECT_EQ(lark.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(lark.error().message.find(entry.message), std::string::npos) << lark.error().message;
  }
}

TEST(gbnf, too_many_rules_are_refused) {
  std::string rules = "root ::= r0\n";
  for (int i = 0; i < 5000; ++i) {
    rules += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  }
  const auto lark = gbnf_to_lark(rules + "r5000 ::= \"a\"\n");
  ASSERT_FALSE(lark.has_value());
  EXPECT_NE(lark.error().message.find("more than 2000 rules"), std::string::npos);
}

}  // namespace
}  // namespace glint
