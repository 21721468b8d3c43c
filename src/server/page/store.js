// What the browser keeps: the settings, and each conversation under its own key, so that saving one costs only its size.
// Everything read back is checked, because an older page, another program or an imported file may have written it.

const kSettings = "glint.settings";
const kKey = "glint.key";
const kChatPrefix = "glint.chat.";

// Browsers may refuse storage altogether; then a page keeps its conversations as long as it is open.
function openStorage(name) {
  try {
    const storage = window[name];
    storage.getItem(kSettings);
    return storage;
  } catch {
    const kept = new Map();
    return {
      getItem: (key) => kept.get(key) ?? null,
      setItem: (key, value) => kept.set(key, value),
      removeItem: (key) => kept.delete(key),
      key: (index) => [...kept.keys()][index],
      get length() {
        return kept.size;
      },
    };
  }
}

const local = openStorage("localStorage");
const session = openStorage("sessionStorage");

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const textOr = (value, otherwise) => (typeof value === "string" ? value : otherwise);
const numberOr = (value, otherwise) => (Number.isFinite(value) ? value : otherwise);
const oneOf = (value, choices) => (choices.includes(value) ? value : choices[0]);

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return Array.from(bytes, (byte) => byte.toString(36).padStart(2, "0")).join("");
}

export function loadSettings() {
  const read = parse(local.getItem(kSettings) ?? "{}");
  const given = isObject(read) ? read : {};
  const temperature = numberOr(given.temperature, null);
  const maxTokens = numberOr(given.maxTokens, null);
  return {
    // null: what the model's makers chose; and an answer as long as the context allows
    temperature: temperature !== null && temperature >= 0 ? temperature : null,
    maxTokens: maxTokens !== null && maxTokens >= 1 ? Math.floor(maxTokens) : null,
    thinking: oneOf(given.thinking, ["auto", "on", "off"]),
    system: textOr(given.system, ""),
    tools: textOr(given.tools, ""),
    theme: oneOf(given.theme, ["system", "light", "dark"]),
    model: textOr(given.model, ""),
  };
}

export function saveSettings(settings) {
  return write(local, kSettings, JSON.stringify(settings));
}

// The key stays in this tab unless it is to be remembered.
export function loadKey() {
  return session.getItem(kKey) ?? local.getItem(kKey) ?? "";
}

export const isKeyRemembered = () => local.getItem(kKey) !== null;

export function saveKey(key, remember) {
  session.removeItem(kKey);
  local.removeItem(kKey);
  if (key) write(remember ? local : session, kKey, key);
}

function write(storage, key, value) {
  try {
    storage.setItem(key, value);
    return true;
  } catch {
    return false;
  }
}

export function newChat() {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, messages: [] };
}

function cleanCall(call) {
  if (!isObject(call)) return null;
  return { id: textOr(call.id, ""), name: textOr(call.name, ""), arguments: textOr(call.arguments, "") };
}

function cleanUsage(usage) {
  if (!isObject(usage)) return null;
  const clean = {};
  for (const [name, value] of Object.entries(usage)) if (Number.isFinite(value)) clean[name] = value;
  return clean;
}

function cleanMessage(message) {
  if (!isObject(message) || !["user", "assistant", "tool"].includes(message.role)) return null;
  const clean = { role: message.role, content: textOr(message.content, "") };
  if (message.role === "tool") {
    return { ...clean, callId: textOr(message.callId, ""), name: textOr(message.name, "") };
  }
  if (message.role === "user") return clean;
  const calls = Array.isArray(message.calls) ? message.calls.map(cleanCall).filter(Boolean) : [];
  const error = isObject(message.error) ? { message: textOr(message.error.message, ""), code: textOr(message.error.code, "") } : null;
  return {
    ...clean,
    thought: textOr(message.thought, ""),
    thoughtMs: numberOr(message.thoughtMs, null),
    calls,
    model: textOr(message.model, ""),
    usage: cleanUsage(message.usage),
    // One that was running when the page went away never ended.
    finish: message.running ? "stopped" : textOr(message.finish, ""),
    error,
  };
}

// A conversation of the right shape, or null.
export function cleanChat(given) {
  if (!isObject(given) || !Array.isArray(given.messages)) return null;
  const created = numberOr(given.created, Date.now());
  return {
    id: /^[0-9a-z]{8,40}$/.test(given.id) ? given.id : newId(),
    title: textOr(given.title, "").slice(0, 200),
    created,
    updated: numberOr(given.updated, created),
    messages: given.messages.map(cleanMessage).filter(Boolean),
  };
}

export function loadChat(id) {
  return cleanChat(parse(local.getItem(kChatPrefix + id) ?? "null"));
}

// False when the browser has no room left.
export function saveChat(chat) {
  return write(local, kChatPrefix + chat.id, JSON.stringify(chat));
}

export function removeChat(id) {
  local.removeItem(kChatPrefix + id);
}

// {id, title, updated} of every conversation, the newest first.
export function listChats() {
  const found = [];
  for (let index = 0; index < local.length; ++index) {
    const key = local.key(index);
    if (!key?.startsWith(kChatPrefix)) continue;
    const chat = parse(local.getItem(key));
    if (isObject(chat)) found.push({ id: key.slice(kChatPrefix.length), title: textOr(chat.title, ""), updated: numberOr(chat.updated, 0) });
  }
  return found.sort((a, b) => b.updated - a.updated);
}

// Calls back when another tab changed a conversation.
export function onForeignChange(callback) {
  window.addEventListener("storage", (event) => {
    if (event.key === null || event.key.startsWith(kChatPrefix)) callback();
  });
}
