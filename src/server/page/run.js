// One answer on its way: sends the conversation and grows the assistant's message as chunks arrive.
import { streamChat } from "./api.js";

// The message as the API wants it. Thoughts go back too: whether older ones are kept is for the model's template to say.
function toApi(message) {
  if (message.role === "user") return { role: "user", content: message.content };
  if (message.role === "tool") return { role: "tool", tool_call_id: message.callId, content: message.content };
  const out = { role: "assistant", content: message.content };
  if (message.thought) out.reasoning_content = message.thought;
  if (message.calls.length > 0) {
    out.tool_calls = message.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return out;
}

const saysSomething = (message) => message.role !== "assistant" || message.content !== "" || message.calls.length > 0;

// The tools as an array, from the settings' text. Throws an Error that says what is wrong with it.
export function parseTools(text) {
  if (text.trim() === "") return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error("This must be a JSON array of tools.");
  return tools;
}

export function chatBody(messages, settings, model) {
  const turns = messages.filter(saysSomething).map(toApi);
  if (settings.system.trim()) turns.unshift({ role: "system", content: settings.system });
  const body = {
    messages: turns,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    return_progress: true,
  };
  if (model) body.model = model;
  if (settings.temperature !== null) body.temperature = settings.temperature;
  if (settings.maxTokens !== null) body.max_tokens = settings.maxTokens;
  if (settings.thinking !== "auto") body.thinking = { type: settings.thinking === "on" ? "enabled" : "disabled" };
  const tools = parseTools(settings.tools);
  if (tools.length > 0) body.tools = tools;
  return body;
}

export function newAnswer() {
  return {
    role: "assistant",
    content: "",
    thought: "",
    thoughtMs: null,
    calls: [],
    model: "",
    usage: null,
    finish: "",
    error: null,
    running: true,
  };
}

// The numbers worth keeping of `usage` and `timings`, flat.
function flatUsage(usage, timings) {
  return {
    prompt: usage?.prompt_tokens ?? 0,
    cached: usage?.prompt_tokens_details?.cached_tokens ?? 0,
    completion: usage?.completion_tokens ?? 0,
    thought: usage?.completion_tokens_details?.reasoning_tokens ?? 0,
    perSecond: timings?.predicted_per_second ?? 0,
    promptMs: timings?.prompt_ms ?? 0,
  };
}

export class Run {
  // `onChange` is called often, whenever there is something new to draw.
  constructor(chat, message, onChange) {
    this.chat = chat;
    this.message = message;
    this.onChange = onChange;
    this.abort = new AbortController();
    this.begun = performance.now();
    this.firstTokenAt = 0;
    this.thoughtAt = 0;
    this.progress = null; // {total, cache, processed} while the prompt is being read
  }

  stop() {
    this.abort.abort();
  }

  // Resolves when the answer has ended, however it did; never rejects.
  async start(body, key) {
    const message = this.message;
    try {
      for await (const chunk of streamChat(body, key, this.abort.signal)) {
        this.apply(chunk);
        this.onChange();
      }
    } catch (error) {
      if (error.name === "AbortError") message.finish = "stopped";
      else message.error = { message: error.message, code: error.code ?? "", status: error.status ?? 0 };
    }
    this.endThought();
    message.running = false;
    message.endedAfterMs = performance.now() - this.begun;
  }

  apply(chunk) {
    const message = this.message;
    if (chunk.model) message.model = chunk.model;
    if (chunk.prompt_progress) this.progress = chunk.prompt_progress;
    if (chunk.usage) message.usage = flatUsage(chunk.usage, chunk.timings);
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    this.addThought(delta.reasoning_content ?? delta.reasoning);
    if (delta.content) {
      this.noteToken();
      this.endThought();
      message.content += delta.content;
    }
    for (const call of delta.tool_calls ?? []) this.addCall(call);
    if (choice.finish_reason) message.finish = choice.finish_reason;
  }

  noteToken() {
    if (this.firstTokenAt === 0) this.firstTokenAt = performance.now();
    this.progress = null;
  }

  addThought(text) {
    if (!text) return;
    this.noteToken();
    if (this.thoughtAt === 0) this.thoughtAt = performance.now();
    this.message.thought += text;
  }

  endThought() {
    if (this.thoughtAt !== 0 && this.message.thoughtMs === null) this.message.thoughtMs = performance.now() - this.thoughtAt;
  }

  addCall(part) {
    this.noteToken();
    this.endThought();
    const calls = this.message.calls;
    const index = Number.isInteger(part.index) && part.index >= 0 && part.index <= calls.length ? part.index : Math.max(calls.length - 1, 0);
    calls[index] ??= { id: "", name: "", arguments: "" };
    if (part.id) calls[index].id = part.id;
    calls[index].name += part.function?.name ?? "";
    calls[index].arguments += part.function?.arguments ?? "";
  }

  // How long the thought has taken so far.
  thoughtMs() {
    return this.message.thoughtMs ?? (this.thoughtAt === 0 ? 0 : performance.now() - this.thoughtAt);
  }

  // Measured here while the server has not said yet.
  tokensPerSecond() {
    const seconds = (performance.now() - this.firstTokenAt) / 1000;
    const tokens = (this.message.usage?.completion ?? 0) - 1;
    return this.firstTokenAt !== 0 && seconds > 0.5 && tokens > 0 ? tokens / seconds : 0;
  }
}
