// A block of code that can grow: its language, a copy button, and colours made line by line, so that a long program costs
// the same per line at its end as at its beginning.
import { copyButton, el } from "./dom.js";

const kMaxColouredLine = 2000; // a longer line is data

const words = (text) => new Set(text.split(" "));
const kKeywords = words(
  "abstract and as assert async await auto bool break case catch char class const constexpr continue crate def default defer " +
    "del delete do double elif else end enum except export extends extern false False final finally float fn for from func " +
    "function global go goto if impl implements import in inline instanceof int interface is lambda let local long loop match " +
    "mod module mut namespace new nil None nonlocal not null nullptr of operator or override package pass priv private " +
    "protected pub public raise ref return self short signed sizeof static str string struct super switch template then this " +
    "throw throws trait true True try type typedef typename typeof undefined union unsafe unsigned use using val var virtual " +
    "void volatile where while with yield",
);
const kSqlKeywords = words(
  "select from where and or not null insert into values update set delete create table drop alter add primary key foreign " +
    "references join left right inner outer full on group by order having limit offset distinct as union all case when then " +
    "else end in is like between exists index view if begin commit int integer text varchar",
);
const kShellKeywords = words("if then else elif fi for while until do done case esac in function return local export source echo cd exit set");

// line: what starts a comment; block: its pair of marks; quotes: what may enclose a string; long: quotes over many lines.
const kC = { line: ["//"], block: ["/*", "*/"], quotes: "\"'`", long: ["`"], keywords: kKeywords };
const kPython = { line: ["#"], quotes: "\"'", long: ['"""', "'''"], keywords: kKeywords };
const kShell = { line: ["#"], quotes: "\"'", long: [], keywords: kShellKeywords };
const kSql = { line: ["--"], block: ["/*", "*/"], quotes: "'\"", long: [], keywords: kSqlKeywords, ignoreCase: true };
const kLua = { line: ["--"], quotes: "\"'", long: [], keywords: kKeywords };
const kCss = { line: [], block: ["/*", "*/"], quotes: "\"'", long: [], keywords: new Set() };
const kJson = { line: [], quotes: '"', long: [], keywords: words("true false null") };
const kMarkup = { line: [], block: ["<!--", "-->"], quotes: "\"'", long: [], keywords: new Set() };
const kConfig = { line: ["#", ";"], quotes: "\"'", long: [], keywords: words("true false null yes no on off") };

const kLanguages = new Map(
  [
    [kC, "c h cc cpp c++ cxx hpp objc cs csharp java kotlin kt scala swift go rust rs js javascript jsx mjs ts typescript tsx php dart zig glsl proto"],
    [kPython, "python py python3 pyi ruby rb r perl pl elixir nim julia jl"],
    [kShell, "sh bash shell zsh console terminal fish dockerfile docker make makefile cmake powershell"],
    [kSql, "sql sqlite mysql postgresql psql"],
    [kLua, "lua haskell hs ada elm"],
    [kCss, "css scss less"],
    [kJson, "json jsonl json5 jsonc"],
    [kMarkup, "html xml svg vue xhtml"],
    [kConfig, "yaml yml toml ini conf cfg properties env"],
  ].flatMap(([rules, names]) => names.split(" ").map((name) => [name, rules])),
);

class Highlighter {
  constructor(rules) {
    this.rules = rules;
    this.until = null; // the mark that ends what earlier lines opened
    this.kind = "";
  }

  // The nodes of one line.
  line(text) {
    if (text.length > kMaxColouredLine) return [text];
    this.nodes = [];
    let at = 0;
    while (at < text.length) at = this.until === null ? this.token(text, at) : this.inside(text, at);
    return this.nodes;
  }

  put(text, kind) {
    this.nodes.push(kind ? el("span", { class: `c-${kind}` }, text) : text);
  }

  inside(text, from) {
    const found = text.indexOf(this.until, from);
    const end = found < 0 ? text.length : found + this.until.length;
    this.put(text.slice(from, end), this.kind);
    if (found >= 0) this.until = null;
    return end;
  }

  open(text, at, mark, until, kind) {
    this.until = until;
    this.kind = kind;
    const found = text.indexOf(until, at + mark.length);
    const end = found < 0 ? text.length : found + until.length;
    if (found >= 0) this.until = null;
    this.put(text.slice(at, end), kind);
    return end;
  }

  token(text, at) {
    const { line, block, quotes, long, keywords, ignoreCase } = this.rules;
    const comment = line.find((mark) => text.startsWith(mark, at));
    if (comment && (comment !== "#" || at === 0 || /\s/.test(text[at - 1]))) {
      this.put(text.slice(at), "comment");
      return text.length;
    }
    if (block && text.startsWith(block[0], at)) return this.open(text, at, block[0], block[1], "comment");
    const mark = long.find((one) => text.startsWith(one, at));
    if (mark) return this.open(text, at, mark, mark, "string");
    if (quotes.includes(text[at])) return this.string(text, at);
    const word = /[A-Za-z_$][\w$]*|\d[\w.]*|[^\w"'`/#;<-]+|./suy;
    word.lastIndex = at;
    const found = word.exec(text)[0];
    const key = ignoreCase ? found.toLowerCase() : found;
    const after = text[at + found.length];
    const kind = keywords.has(key) ? "keyword" : /^\d/.test(found) ? "number" : after === "(" && /^[A-Za-z_]/.test(found) ? "call" : "";
    this.put(found, kind);
    return at + found.length;
  }

  string(text, at) {
    const quote = text[at];
    let end = at + 1;
    while (end < text.length && text[end] !== quote) end += text[end] === "\\" ? 2 : 1;
    // An apostrophe without a partner, as in a comment of a language we do not know.
    if (end >= text.length && quote === "'") {
      this.put(quote, "");
      return at + 1;
    }
    end = Math.min(end + 1, text.length);
    this.put(text.slice(at, end), "string");
    return end;
  }
}

class DiffHighlighter {
  line(text) {
    const kind = text.startsWith("+") ? "added" : text.startsWith("-") ? "removed" : text.startsWith("@@") ? "comment" : "";
    return kind ? [el("span", { class: `c-${kind}` }, text)] : [text];
  }
}

const kPlain = { line: (text) => [text] };

function highlighterOf(language) {
  if (language === "diff" || language === "patch") return new DiffHighlighter();
  const rules = kLanguages.get(language);
  return rules ? new Highlighter(rules) : kPlain;
}

export class CodeBlock {
  constructor(info) {
    const language = info.trim().split(/[\s{,]/, 1)[0].slice(0, 30);
    this.highlighter = highlighterOf(language.toLowerCase());
    this.lines = [];
    this.partial = "";
    this.partialNode = document.createTextNode("");
    this.code = el("code", {}, this.partialNode);
    this.element = el(
      "div",
      { class: "code" },
      el("div", { class: "code-head" }, el("span", {}, language || "text"), copyButton("Copy code", () => this.text())),
      el("pre", { tabindex: "0", "aria-label": `Code${language ? `, ${language}` : ""}` }, this.code),
    );
  }

  text() {
    return [...this.lines, ...(this.partial ? [this.partial] : [])].join("\n");
  }

  // Whole lines, without their ends.
  addLines(lines) {
    const added = document.createDocumentFragment();
    for (const line of lines) {
      if (this.lines.length > 0) added.append("\n");
      added.append(...this.highlighter.line(line));
      this.lines.push(line);
    }
    this.code.insertBefore(added, this.partialNode);
  }

  // What there is of the line that is still being written.
  setPartial(text) {
    this.partial = text;
    this.partialNode.data = text && this.lines.length > 0 ? `\n${text}` : text;
  }
}

// The nodes of a text in a language, its line breaks among them.
export function colouredLines(language, text) {
  const highlighter = highlighterOf(language);
  return text.split("\n").flatMap((line, index) => [...(index > 0 ? ["\n"] : []), ...highlighter.line(line)]);
}

export function codeBlock(info, lines) {
  const block = new CodeBlock(info);
  block.addLines(lines);
  return block.element;
}

// JSON with line breaks and indents, made from its characters alone: numbers keep their digits, and a beginning is shown as
// far as it goes.
export function prettyJson(text) {
  let out = "";
  let depth = 0;
  const newLine = () => `\n${"  ".repeat(Math.min(depth, 40))}`;
  for (let at = 0; at < text.length; ++at) {
    const sign = text[at];
    if (sign === '"') {
      const start = at++;
      while (at < text.length && text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
      out += text.slice(start, at + 1);
    } else if (sign === "{" || sign === "[") {
      const empty = /^\s*[}\]]/.exec(text.slice(at + 1, at + 50));
      if (empty) {
        out += sign + empty[0].trim();
        at += empty[0].length;
      } else {
        ++depth;
        out += sign + newLine();
      }
    } else if (sign === "}" || sign === "]") {
      depth = Math.max(depth - 1, 0);
      out += newLine() + sign;
    } else if (sign === ",") out += sign + newLine();
    else if (sign === ":") out += ": ";
    else if (!/\s/.test(sign)) out += sign;
  }
  return out;
}
