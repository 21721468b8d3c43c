// Markdown inside one paragraph, as DOM nodes: emphasis, code, links. One pass over the text with a stack of what is open,
// so that no text is slow. Nothing is ever read as HTML; formulas stay the text they are.
import { el } from "./dom.js";

const kMaxOpen = 64; // nested emphasis and brackets; what is deeper stays text
const kMaxUrl = 2048;
const kSpecial = /[\\`*_~[\]!<$&\n]|https?:\/\//g;
const kSpace = /\s/;
const kWord = /[\p{L}\p{N}_]/u;
const kEscapable = /[!-/:-@[-`{-~]/;
const kEntities = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&nbsp;": "\u00a0" };

// The address if it may be a link, or null.
function safeUrl(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// Opens in a new tab that knows nothing of this one. Nothing is loaded before it is clicked.
function link(url, children) {
  return el("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

class Inline {
  // `open`: the text may go on, so emphasis that is not closed yet is shown as if it were.
  constructor(text, open) {
    this.text = text;
    this.open = open;
    this.at = 0;
    this.frames = [{ mark: "", count: 0, children: [] }];
    this.tickRuns = null;
    this.absent = new Set(); // closing marks of formulas that do not come any more
  }

  run() {
    while (this.at < this.text.length) {
      kSpecial.lastIndex = this.at;
      const found = kSpecial.exec(this.text);
      const next = found ? found.index : this.text.length;
      if (next > this.at) this.addText(this.text.slice(this.at, next));
      this.at = next;
      if (found) this.special(found[0]);
    }
    while (this.frames.length > 1) this.unwind();
    return this.frames[0].children;
  }

  get top() {
    return this.frames[this.frames.length - 1];
  }

  add(node) {
    this.top.children.push(node);
  }

  addText(text) {
    const children = this.top.children;
    if (typeof children[children.length - 1] === "string") children[children.length - 1] += text;
    else children.push(text);
  }

  // The character itself, when it turned out to mean nothing.
  literal(count = 1) {
    this.addText(this.text.slice(this.at, this.at + count));
    this.at += count;
  }

  special(found) {
    switch (found) {
      case "\\":
        return this.backslash();
      case "`":
        return this.code();
      case "*":
      case "_":
      case "~":
        return this.emphasis(found);
      case "[":
        return this.openBracket("[");
      case "!":
        return this.text[this.at + 1] === "[" ? this.openBracket("![") : this.literal();
      case "]":
        return this.closeBracket();
      case "<":
        return this.angle();
      case "$":
        return this.formula();
      case "&":
        return this.entity();
      case "\n":
        this.at += 1;
        return this.add(el("br"));
      default:
        return this.bareUrl();
    }
  }

  backslash() {
    const next = this.text[this.at + 1] ?? "";
    if (next === "(" || next === "[") return this.span(next === "(" ? "\\)" : "\\]", 2);
    if (next === "\n") this.at += 1;
    else if (kEscapable.test(next)) {
      this.addText(next);
      this.at += 2;
    } else this.literal();
  }

  // A formula between two marks, with everything in it left alone.
  span(closer, openerLength) {
    const end = this.absent.has(closer) ? -1 : this.text.indexOf(closer, this.at + openerLength);
    if (end < 0) {
      this.absent.add(closer);
      return this.literal(openerLength);
    }
    const after = end + closer.length;
    this.add(el("span", { class: "math" }, this.text.slice(this.at, after)));
    this.at = after;
  }

  formula() {
    if (this.text[this.at + 1] === "$") return this.span("$$", 2);
    // "$5 and $6" is money: a formula touches its marks on the inside and no digit follows.
    const line = this.text.slice(this.at, this.at + 400).split("\n", 1)[0];
    const found = /^\$[^\s$](?:[^$]*[^\s$\\])?\$(?!\d)/.exec(line);
    if (!found) return this.literal();
    this.add(el("span", { class: "math" }, found[0]));
    this.at += found[0].length;
  }

  // Where runs of exactly `length` backticks start, in order.
  ticksOf(length) {
    if (this.tickRuns === null) {
      this.tickRuns = new Map();
      for (const run of this.text.matchAll(/`+/g)) {
        const size = run[0].length;
        if (!this.tickRuns.has(size)) this.tickRuns.set(size, { starts: [], next: 0 });
        this.tickRuns.get(size).starts.push(run.index);
      }
    }
    return this.tickRuns.get(length);
  }

  code() {
    let length = 1;
    while (this.text[this.at + length] === "`") ++length;
    const runs = this.ticksOf(length);
    const from = this.at + length;
    while (runs && runs.next < runs.starts.length && runs.starts[runs.next] < from) ++runs.next;
    const end = runs?.starts[runs.next];
    if (end === undefined && !this.open) return this.literal(length);
    let inner = this.text.slice(from, end).replaceAll("\n", " ");
    if (/^ .*[^ ].* $/.test(inner)) inner = inner.slice(1, -1);
    this.add(el("code", {}, inner));
    this.at = end === undefined ? this.text.length : end + length;
  }

  emphasis(mark) {
    let count = 1;
    while (this.text[this.at + count] === mark) ++count;
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + count] ?? " ";
    let opens = !kSpace.test(after);
    let closes = !kSpace.test(before);
    if (mark === "_") {
      opens &&= !kWord.test(before);
      closes &&= !kWord.test(after);
    }
    if (mark === "~" && count !== 2) return this.literal(count);
    const start = this.at;
    this.at += count;
    if (closes) count = this.close(mark, count);
    if (count === 0) return;
    if (opens && this.frames.length < kMaxOpen) this.frames.push({ mark, count, children: [] });
    else this.addText(this.text.slice(start, start + count));
  }

  // Closes what it can of a run of `count` marks; returns what is left of the run.
  close(mark, count) {
    while (count > 0) {
      let index = this.frames.length - 1;
      while (index > 0 && this.frames[index].mark !== mark) --index;
      if (index === 0) return count;
      while (this.frames.length - 1 > index) this.unwind(true);
      const frame = this.top;
      const used = frame.count >= 2 && count >= 2 ? 2 : 1;
      this.wrap(frame, used);
      count -= used;
    }
    return 0;
  }

  // Puts the children of the top frame into one element for `used` of its marks, and drops the frame when none is left.
  wrap(frame, used) {
    const tag = frame.mark === "~" ? "del" : used === 2 ? "strong" : "em";
    frame.children = [el(tag, {}, ...frame.children)];
    frame.count -= used;
    if (frame.count > 0) return;
    this.frames.pop();
    this.top.children.push(...frame.children);
  }

  // The top frame was never closed: its mark is text, or, where the text may go on, a mark that is about to be closed.
  unwind(isCrossed = false) {
    const frame = this.top;
    if (this.open && !isCrossed && frame.mark === "*" && frame.count === 2 && frame.children.length > 0) return this.wrap(frame, 2);
    this.frames.pop();
    this.addText(frame.mark.length > 1 || frame.mark === "[" ? frame.mark : frame.mark.repeat(frame.count));
    for (const child of frame.children) typeof child === "string" ? this.addText(child) : this.add(child);
  }

  openBracket(mark) {
    if (this.frames.length >= kMaxOpen) return this.literal(mark.length);
    this.frames.push({ mark, count: 1, children: [] });
    this.at += mark.length;
  }

  closeBracket() {
    let index = this.frames.length - 1;
    while (index > 0 && !this.frames[index].mark.endsWith("[")) --index;
    if (index === 0) return this.literal();
    while (this.frames.length - 1 > index) this.unwind(true);
    const target = this.destination();
    if (target === null) {
      this.unwind(true);
      return this.literal();
    }
    const frame = this.frames.pop();
    // A picture would be a request to somebody else: its link is shown instead.
    const label = frame.children.length > 0 ? frame.children : [target.url];
    this.add(link(target.url, label));
    this.at = target.end;
  }

  // "](url "title")" at the current place: {url, end}, or null.
  destination() {
    if (this.text[this.at + 1] !== "(") return null;
    const rest = this.text.slice(this.at + 2, this.at + 2 + kMaxUrl);
    const angled = /^\s*<([^<>\n]*)>/.exec(rest);
    let address = "";
    let length = 0;
    if (angled) {
      address = angled[1];
      length = angled[0].length;
    } else {
      let depth = 0;
      while (length < rest.length && !kSpace.test(rest[length])) {
        if (rest[length] === "(") ++depth;
        else if (rest[length] === ")" && depth-- === 0) break;
        ++length;
      }
      address = rest.slice(0, length);
    }
    const tail = /^(?:\s+"[^"]*"|\s+'[^']*')?\s*\)/.exec(rest.slice(length));
    const url = safeUrl(address);
    return tail && url ? { url, end: this.at + 2 + length + tail[0].length } : null;
  }

  angle() {
    const rest = this.text.slice(this.at, this.at + kMaxUrl);
    const lineBreak = /^<br ?\/?>/i.exec(rest);
    if (lineBreak) {
      this.at += lineBreak[0].length;
      return this.add(el("br"));
    }
    const found = /^<((?:https?|mailto):[^\s<>]+)>/.exec(rest);
    const url = found && safeUrl(found[1]);
    if (!url) return this.literal();
    this.add(link(url, [found[1]]));
    this.at += found[0].length;
  }

  entity() {
    const found = /^&(?:amp|lt|gt|quot|#39|nbsp);/.exec(this.text.slice(this.at, this.at + 7));
    if (!found) return this.literal();
    this.addText(kEntities[found[0]]);
    this.at += found[0].length;
  }

  bareUrl() {
    const rest = this.text.slice(this.at, this.at + kMaxUrl);
    let address = /^https?:\/\/[^\s<>"'`\]]*/.exec(rest)[0];
    while (/[.,;:!?*_~)]$/.test(address)) {
      if (address.endsWith(")") && address.split("(").length >= address.split(")").length) break;
      address = address.slice(0, -1);
    }
    const isLabel = this.frames.some((frame) => frame.mark.endsWith("["));
    const url = isLabel || kWord.test(this.text[this.at - 1] ?? " ") ? null : safeUrl(address);
    if (!url) return this.literal(4);
    this.add(link(url, [address]));
    this.at += address.length;
  }
}

// The nodes and strings of `text`, to be appended.
export function inline(text, open = false) {
  return new Inline(text, open).run();
}
