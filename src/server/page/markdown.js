// Markdown to DOM nodes, for text that is still growing: blocks that can no longer change are built once and left alone,
// only the last one is built again, and an open block of code just gains lines. Model text never becomes HTML.
import { CodeBlock, codeBlock } from "./code.js";
import { el } from "./dom.js";
import { inline } from "./inline.js";

const kMaxDepth = 8; // of lists and quotes within each other; deeper ones are paragraphs
const kFence = /^ {0,3}(`{3,}|~{3,})[ \t]*(.*)$/;
const kHeading = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const kRule = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const kQuote = /^ {0,3}>/;
const kItem = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:([ \t]+)|$)/;
const kMath = /^[ \t]*(\$\$|\\\[)/;

const isBlank = (line) => /^[ \t]*$/.test(line);

// Columns of white space at the start of a line, a tab reaching to the next multiple of four.
function indentOf(line) {
  let columns = 0;
  for (const sign of line) {
    if (sign === " ") ++columns;
    else if (sign === "\t") columns += 4 - (columns % 4);
    else break;
  }
  return columns;
}

// The line without its first `columns` columns of white space.
function outdent(line, columns) {
  let at = 0;
  let seen = 0;
  while (at < line.length && seen < columns && (line[at] === " " || line[at] === "\t")) {
    seen += line[at] === "\t" ? 4 - (seen % 4) : 1;
    ++at;
  }
  return line.slice(at);
}

// {columns, marker, type, rest} of a line that starts a list item, or null.
function itemOf(line) {
  const found = kItem.exec(line);
  if (!found || kRule.test(line)) return null;
  const [whole, , marker, space] = found;
  const columns = indentOf(line);
  return {
    columns,
    marker,
    type: /\d/.test(marker) ? "ol" : "ul",
    inner: columns + marker.length + Math.min(space?.length ?? 1, 4),
    rest: line.slice(whole.length),
  };
}

function fenceOf(line) {
  const found = kFence.exec(line);
  if (!found || (found[1][0] === "`" && found[2].includes("`"))) return null;
  return { mark: found[1], info: found[2], columns: indentOf(line) };
}

const closesFence = (line, fence) => {
  const text = line.trim();
  return text.length >= fence.mark.length && text === fence.mark[0].repeat(text.length) && indentOf(line) < 4 + fence.columns;
};

function startsBlock(line) {
  const item = itemOf(line);
  return (
    kHeading.test(line) ||
    kQuote.test(line) ||
    kRule.test(line) ||
    kMath.test(line) ||
    fenceOf(line) !== null ||
    (item !== null && item.rest !== "" && (item.type === "ul" || item.marker.startsWith("1")))
  );
}

// The cells of a table's row. A bar within code or after a backslash is no border.
function cellsOf(line) {
  const cells = [""];
  let inCode = false;
  const text = line.trim().replace(/^\|/, "");
  for (let at = 0; at < text.length; ++at) {
    if (text[at] === "`") inCode = !inCode;
    if (text[at] === "\\" && text[at + 1] === "|") cells[cells.length - 1] += text[++at];
    else if (text[at] === "|" && !inCode) cells.push("");
    else cells[cells.length - 1] += text[at];
  }
  if (cells.length > 1 && isBlank(cells[cells.length - 1])) cells.pop();
  return cells.map((cell) => cell.trim());
}

// "left", "center", "right" or "" per column if the line is the one below a table's head, else null.
function alignmentsOf(line) {
  if (!line.includes("-") || !/^[ \t|:-]+$/.test(line)) return null;
  const cells = cellsOf(line);
  if (!cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return cells.map((cell) => {
    const right = cell.endsWith(":");
    if (cell.startsWith(":")) return right ? "center" : "left";
    return right ? "right" : "";
  });
}

const startsTable = (lines, at) =>
  lines[at].includes("|") && at + 1 < lines.length && alignmentsOf(lines[at + 1])?.length === cellsOf(lines[at]).length;

// Each reader takes the block that starts at `lines[at]` and returns {end, node}: the line behind it, and its element.
class BlockReader {
  constructor(lines, depth, open) {
    this.lines = lines;
    this.depth = depth;
    this.open = open; // the last line may go on
  }

  // Whether text that ends in line `end` may still grow.
  grows(end) {
    return this.open && end >= this.lines.length;
  }

  read(at) {
    const line = this.lines[at];
    const fence = fenceOf(line);
    if (fence) return this.fence(at, fence);
    if (kHeading.test(line)) return this.heading(at);
    if (kRule.test(line)) return { end: at + 1, node: el("hr") };
    if (kMath.test(line)) return this.math(at);
    if (this.depth < kMaxDepth) {
      if (kQuote.test(line)) return this.quote(at);
      if (itemOf(line)) return this.list(at);
    }
    if (startsTable(this.lines, at)) return this.table(at);
    return this.paragraph(at);
  }

  fence(at, fence) {
    let end = at + 1;
    while (end < this.lines.length && !closesFence(this.lines[end], fence)) ++end;
    const body = this.lines.slice(at + 1, end).map((line) => outdent(line, fence.columns));
    return { end: Math.min(end + 1, this.lines.length), node: codeBlock(fence.info, body) };
  }

  heading(at) {
    const line = this.lines[at];
    const level = kHeading.exec(line)[1].length;
    const text = line.trim().slice(level).trim().replace(/(^|[ \t])#+$/, "");
    // The page's own headings come first, so the model's start below them.
    return { end: at + 1, node: el(`h${Math.min(level + 2, 6)}`, { dir: "auto", class: `h-${level}` }, ...inline(text)) };
  }

  math(at) {
    const opener = kMath.exec(this.lines[at])[1];
    const closer = opener === "$$" ? "$$" : "\\]";
    let end = at;
    if (this.lines[at].indexOf(closer, this.lines[at].indexOf(opener) + 2) < 0) {
      do ++end;
      while (end < this.lines.length && !this.lines[end].includes(closer));
    }
    end = Math.min(end + 1, this.lines.length);
    return { end, node: el("div", { class: "math", tabindex: "0" }, this.lines.slice(at, end).join("\n")) };
  }

  quote(at) {
    let end = at;
    const inner = [];
    while (end < this.lines.length && (kQuote.test(this.lines[end]) || (!isBlank(this.lines[end]) && !startsBlock(this.lines[end])))) {
      inner.push(this.lines[end].replace(/^ {0,3}> ?/, ""));
      ++end;
    }
    return { end, node: el("blockquote", { dir: "auto" }, ...blocks(inner, this.depth + 1, this.grows(end))) };
  }

  list(at) {
    const first = itemOf(this.lines[at]);
    const items = [];
    let end = at;
    let isLoose = false;
    while (end < this.lines.length) {
      const item = itemOf(this.lines[end]);
      if (!item || item.type !== first.type || item.columns >= first.columns + 2) break;
      const { next, body } = this.item(end, item);
      if (items.length > 0 && isBlank(this.lines[end - 1])) isLoose = true;
      items.push(body);
      end = next;
    }
    const start = first.type === "ol" && parseInt(first.marker, 10) !== 1 ? parseInt(first.marker, 10) : null;
    const list = el(first.type, { start, class: isLoose ? null : "tight" });
    items.forEach((body, index) => list.append(this.itemNode(body, index === items.length - 1 && this.grows(end))));
    return { end, node: list };
  }

  // The lines of one item, without its indent. Blank lines belong to it if something of it follows.
  item(at, item) {
    const body = [item.rest];
    let next = at + 1;
    let blanks = 0;
    for (let end = at + 1; end < this.lines.length; ++end) {
      const line = this.lines[end];
      if (isBlank(line)) {
        ++blanks;
        continue;
      }
      const columns = indentOf(line);
      const isInside = columns >= item.columns + 2;
      if (!isInside && (blanks > 0 || startsBlock(line) || itemOf(line))) break;
      for (; blanks > 0; --blanks) body.push("");
      body.push(isInside ? outdent(line, Math.min(columns, item.inner)) : line.trimStart());
      next = end + 1;
    }
    // Blank lines between two items are passed over.
    while (next < this.lines.length && isBlank(this.lines[next])) ++next;
    return { next, body };
  }

  itemNode(body, open) {
    const task = /^\[([ xX])\][ \t]+/.exec(body[0]);
    if (!task) return el("li", { dir: "auto" }, ...blocks(body, this.depth + 1, open));
    const box = el("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": task[1] === " " ? "open" : "done" });
    const rest = [body[0].slice(task[0].length), ...body.slice(1)];
    return el("li", { class: "task", dir: "auto" }, box, ...blocks(rest, this.depth + 1, open));
  }

  table(at) {
    const alignments = alignmentsOf(this.lines[at + 1]);
    const row = (line, tag) => {
      const cells = cellsOf(line);
      return el("tr", {}, ...alignments.map((side, index) => el(tag, { class: side || null, dir: "auto" }, ...inline(cells[index] ?? ""))));
    };
    const head = el("thead", {}, row(this.lines[at], "th"));
    const body = el("tbody");
    let end = at + 2;
    while (end < this.lines.length && !isBlank(this.lines[end]) && this.lines[end].includes("|")) body.append(row(this.lines[end++], "td"));
    return { end, node: el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, el("table", {}, head, body)) };
  }

  paragraph(at) {
    let end = at + 1;
    while (end < this.lines.length && !isBlank(this.lines[end]) && !startsBlock(this.lines[end]) && !startsTable(this.lines, end)) ++end;
    const text = this.lines.slice(at, end).map((line) => line.trim()).join("\n");
    return { end, node: el("p", { dir: "auto" }, ...inline(text, this.grows(end))) };
  }
}

function blocks(lines, depth, open) {
  const reader = new BlockReader(lines, depth, open);
  const nodes = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      ++at;
      continue;
    }
    const { end, node } = reader.read(at);
    nodes.push(node);
    at = end;
  }
  return nodes;
}

export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.done = 0; // characters of the text that are built for good
    this.unsure = []; // the elements of the blocks behind them
    this.fence = null; // {mark, columns, block}: an open block of code, whose whole lines are done
  }

  // Shows `text`, which begins with what was shown before. `open`: it will go on.
  update(text, open) {
    for (const node of this.unsure) node.remove();
    this.unsure = [];
    while (this.done < text.length) {
      const before = this.done;
      if (this.fence) this.growFence(text, open);
      else this.growBlocks(text, open);
      if (this.done === before) break;
    }
  }

  growFence(text, open) {
    const { fence } = this;
    const end = text.lastIndexOf("\n") + 1;
    const lines = end > this.done ? text.slice(this.done, end - 1).split("\n") : [];
    const closing = lines.findIndex((line) => closesFence(line, fence));
    const body = (closing < 0 ? lines : lines.slice(0, closing)).map((line) => outdent(line, fence.columns));
    fence.block.setPartial("");
    fence.block.addLines(body);
    if (closing >= 0) {
      this.done += lines.slice(0, closing + 1).reduce((sum, line) => sum + line.length + 1, 0);
      this.fence = null;
      return;
    }
    this.done = Math.max(end, this.done);
    const rest = text.slice(this.done);
    // A beginning of the closing line is not code.
    const mayClose = rest.trim() !== "" && rest.trim() === fence.mark[0].repeat(rest.trim().length);
    fence.block.setPartial(mayClose && (open || closesFence(rest, fence)) ? "" : outdent(rest, fence.columns));
    if (!open) this.done = text.length;
  }

  growBlocks(text, open) {
    const lines = text.slice(this.done).split("\n");
    const reader = new BlockReader(lines, 0, open);
    // What a block is may depend on the two lines behind its own, so those have to be whole.
    const isSure = (line) => !open || line + 2 < lines.length;
    let at = 0;
    const pass = (end) => {
      for (; at < end; ++at) this.done += lines[at].length + 1;
    };
    let isFixed = true;
    for (let line = 0; line < lines.length; ) {
      if (isBlank(lines[line])) {
        ++line;
        continue;
      }
      const fence = fenceOf(lines[line]);
      if (fence && isFixed && isSure(line)) {
        pass(line + 1);
        this.fence = { ...fence, block: new CodeBlock(fence.info) };
        this.root.append(this.fence.block.element);
        return;
      }
      const { end, node } = reader.read(line);
      this.root.append(node);
      line = end;
      while (line < lines.length && isBlank(lines[line])) ++line;
      isFixed &&= isSure(line);
      if (isFixed) pass(line);
      else this.unsure.push(node);
    }
    if (!open) this.done = text.length;
  }
}
