// Messages on the page. A view is built once and then told to update: it draws only what is new since the last time.
import { colouredLines, prettyJson } from "./code.js";
import { copyButton, el, icon, iconButton } from "./dom.js";
import { MarkdownView } from "./markdown.js";

const number = (value) => Math.round(value).toLocaleString("en");
const speed = (value) => (value >= 100 ? number(value) : value.toFixed(1));

function duration(ms) {
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

const kHints = {
  context_length_exceeded: "The conversation no longer fits into the model's context. Start a new one, or shorten the last message.",
  queue_full: "Many others are waiting. Try again in a moment.",
  loading: "The model is still loading. Try again in a moment.",
  draining: "The server is shutting down.",
  unreachable: "Is it still running?",
};

const kEndings = {
  length: "Ended at the length limit.",
  stopped: "Stopped.",
  content_filter: "Ended by a filter.",
};

// What the server counted, as one line.
function statistics(message, run) {
  const usage = message.usage;
  const parts = [];
  if (message.model) parts.push(message.model);
  if (usage) {
    const rate = usage.perSecond || (run ? run.tokensPerSecond() : 0);
    if (rate > 0) parts.push(`${speed(rate)} tok/s`);
    const thinking = usage.thought > 0 ? ` (${number(usage.thought)} thinking)` : "";
    if (usage.completion > 0) parts.push(`${number(usage.completion)} ${usage.completion === 1 ? "token" : "tokens"}${thinking}`);
    if (usage.prompt > 0) parts.push(`prompt ${number(usage.prompt)}${usage.cached > 0 ? ` (${number(usage.cached)} cached)` : ""}`);
    if (usage.promptMs >= 1000) parts.push(`read in ${duration(usage.promptMs)}`);
  }
  return parts.join(" · ");
}

// The thought: open while it grows, closed when the answer begins, unless the user decided.
class ThoughtView {
  constructor() {
    this.label = el("span", {});
    this.textNode = document.createTextNode("");
    this.body = el("div", { class: "thought-text", dir: "auto" }, this.textNode);
    this.element = el("details", { class: "thought", hidden: true }, el("summary", {}, icon("thought"), this.label), this.body);
    this.element.querySelector("summary").addEventListener("click", () => (this.isUsers = true));
    this.isUsers = false;
  }

  update(message, run) {
    const text = message.thought;
    if (text === "") return;
    this.element.hidden = false;
    const isThinking = run !== null && message.thoughtMs === null;
    const isAtEnd = this.body.scrollHeight - this.body.scrollTop - this.body.clientHeight < 40;
    if (text.length > this.textNode.length) this.textNode.appendData(text.slice(this.textNode.length));
    const ms = message.thoughtMs ?? run?.thoughtMs() ?? 0;
    this.label.textContent = isThinking ? `Thinking… ${duration(ms)}` : ms > 0 ? `Thought for ${duration(ms)}` : "Thought";
    this.element.classList.toggle("active", isThinking);
    if (!this.isUsers) this.element.open = isThinking;
    if (isThinking && isAtEnd) this.body.scrollTop = this.body.scrollHeight;
  }
}

class CallView {
  constructor() {
    this.name = el("strong", {});
    this.shown = null;
    this.json = "";
    this.code = el("code", {});
    this.element = el(
      "section",
      { class: "call", "aria-label": "Tool call" },
      el("div", { class: "call-head" }, icon("tool"), this.name, copyButton("Copy arguments", () => this.json)),
      el("pre", { tabindex: "0", "aria-label": "Arguments" }, this.code),
    );
  }

  update(call) {
    this.name.textContent = call.name;
    if (this.shown === call.arguments) return;
    this.shown = call.arguments;
    this.json = prettyJson(call.arguments || "{}");
    this.code.replaceChildren(...colouredLines("json", this.json));
  }
}

// Where the user plays the tool: a field per call.
function resultForm(calls, onResults) {
  const fields = calls.map((call) => {
    const area = el("textarea", { rows: "2", spellcheck: "false", placeholder: "what the tool returned" });
    return { call, area, label: el("label", {}, el("span", {}, `Result of ${call.name}`), area) };
  });
  const send = (event) => {
    event.preventDefault();
    onResults(fields.map(({ call, area }) => ({ role: "tool", callId: call.id, name: call.name, content: area.value })));
  };
  const button = el("button", { type: "submit", class: "primary" }, calls.length > 1 ? "Send results" : "Send result");
  const form = el("form", { class: "results", onsubmit: send }, ...fields.map((field) => field.label), button);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  });
  return form;
}

export class AnswerView {
  // actions: {retry(), results(messages), isLast(message)}
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.thought = new ThoughtView();
    this.text = el("div", { class: "text" });
    this.markdown = new MarkdownView(this.text);
    this.calls = el("div", { class: "calls" });
    this.callViews = [];
    this.waiting = el("div", { class: "waiting", hidden: true });
    this.after = el("div", { class: "after" });
    this.statistics = el("span", { class: "statistics" });
    this.buttons = el("span", { class: "buttons" });
    this.footer = el("footer", {}, this.buttons, this.statistics);
    this.element = el(
      "article",
      { class: "message answer", "aria-label": "Answer" },
      this.thought.element,
      this.text,
      this.calls,
      this.waiting,
      this.after,
      this.footer,
    );
  }

  // `run` is null once the answer has ended.
  update(run) {
    const { message } = this;
    this.element.classList.toggle("running", run !== null);
    if (run) this.element.setAttribute("aria-busy", "true");
    else this.element.removeAttribute("aria-busy");
    this.thought.update(message, run);
    this.markdown.update(message.content, run !== null);
    message.calls.forEach((call, index) => {
      if (!this.callViews[index]) {
        this.callViews[index] = new CallView();
        this.calls.append(this.callViews[index].element);
      }
      this.callViews[index].update(call);
    });
    this.showWaiting(run);
    this.statistics.textContent = statistics(message, run);
    if (!run) this.showEnd();
  }

  showWaiting(run) {
    const { message } = this;
    const isWaiting = run !== null && message.content === "" && message.thought === "" && message.calls.length === 0;
    this.waiting.hidden = !isWaiting;
    if (!isWaiting) return this.waiting.replaceChildren();
    if (!this.waitingText) {
      this.waitingText = el("span", {});
      this.bar = el("progress", { "aria-label": "Reading the prompt", hidden: true });
      this.waiting.append(el("span", { class: "dots", "aria-hidden": "true" }, el("i"), el("i"), el("i")), this.waitingText, this.bar);
    }
    const ms = performance.now() - run.begun;
    const time = ms > 2000 ? ` · ${duration(ms)}` : "";
    const progress = run.progress;
    this.bar.hidden = !(progress?.total > 0);
    if (this.bar.hidden) {
      this.waitingText.textContent = time ? `Waiting for the first token${time}` : "";
      return;
    }
    this.bar.max = progress.total;
    this.bar.value = progress.processed;
    const cached = progress.cache > 0 ? ` (${number(progress.cache)} cached)` : "";
    this.waitingText.textContent = `Reading the prompt: ${number(progress.processed)} of ${number(progress.total)} tokens${cached}${time}`;
  }

  // What is shown when nothing more will come.
  showEnd() {
    const { message, actions } = this;
    const isLast = actions.isLast(message);
    const parts = [];
    if (message.error) parts.push(this.errorBox(isLast));
    else if (kEndings[message.finish]) parts.push(el("p", { class: "ending" }, kEndings[message.finish]));
    if (isLast && message.calls.length > 0 && !message.error && message.finish !== "stopped") {
      parts.push(resultForm(message.calls, actions.results));
    }
    this.after.replaceChildren(...parts);
    const buttons = [];
    if (message.content) buttons.push(copyButton("Copy answer", () => message.content));
    if (isLast && !message.error) buttons.push(iconButton("retry", "Answer again", actions.retry));
    this.buttons.replaceChildren(...buttons);
    this.footer.hidden = buttons.length === 0 && this.statistics.textContent === "";
  }

  errorBox(isLast) {
    const { message, code } = this.message.error;
    const hint = kHints[code];
    return el(
      "div",
      { class: "error", role: "alert" },
      icon("warning"),
      el("div", {}, el("p", {}, message), hint && el("p", { class: "hint" }, hint)),
      isLast && el("button", { type: "button", onclick: this.actions.retry }, icon("retry"), "Retry"),
    );
  }
}

export class UserView {
  // actions: {edit(), isLastUser(message)}
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.buttons = el("span", { class: "buttons" });
    this.element = el(
      "article",
      { class: "message user", "aria-label": "You" },
      el("div", { class: "bubble", dir: "auto" }, message.content),
      el("footer", {}, this.buttons),
    );
  }

  update() {
    const { message, actions } = this;
    const edit = actions.isLastUser(message) && iconButton("edit", "Edit message", actions.edit);
    this.buttons.replaceChildren(copyButton("Copy message", () => message.content), ...(edit ? [edit] : []));
  }
}

export class ToolView {
  constructor(message) {
    this.message = message;
    this.element = el(
      "article",
      { class: "message tool", "aria-label": `Result of ${message.name}` },
      el("div", { class: "call-head" }, icon("result"), el("span", {}, "Result of ", el("strong", {}, message.name))),
      el("pre", { tabindex: "0", "aria-label": "Result" }, message.content),
    );
  }

  update() {}
}
