// The page: which conversation is shown, what is being answered, and what the keys and buttons do.
import { listModels, serverStatus } from "./api.js";
import { announce, byId, download, el, notify } from "./dom.js";
import { AnswerView, ToolView, UserView } from "./message_view.js";
import { chatBody, newAnswer, Run } from "./run.js";
import { applyTheme, openSettings, showKeyField, watchSettings } from "./settings.js";
import { showChats, titleOf, watchSidebar } from "./sidebar.js";
import * as store from "./store.js";

const kSaveEveryMs = 2000;
const kLeavingMs = 3000;
const kNearEnd = 60; // pixels from the end that still count as being there
const kExamples = ["Explain what a prefix cache is, in three sentences.", "Write a Python function that merges two sorted lists.", "Which questions should I ask before renting a flat?"];
const kDemoExamples = ["What is 17 + 25?", "Sort: 9 4 7 1", "Who are you?"];

const settings = store.loadSettings();
const server = { status: "", models: [], context: 0 };
const runs = new Map(); // conversation id -> Run

let chat = store.newChat();
let views = [];
let editing = false;
let isAtEnd = true;
let sidebar = null;

// ---- drawing

let frame = 0;
let notBefore = 0;

// Draws at most once per frame, and leaves the browser time for the rest when a frame was dear.
function scheduleDraw() {
  if (frame) return;
  frame = requestAnimationFrame((now) => {
    frame = 0;
    if (now < notBefore) return scheduleDraw();
    const begun = performance.now();
    drawRunning();
    const cost = performance.now() - begun;
    notBefore = cost > 8 ? begun + 4 * cost : 0;
  });
}

function drawRunning() {
  const run = runs.get(chat.id);
  if (!run) return;
  viewOf(run.message)?.update(run);
  if (isAtEnd) scrollToEnd();
}

const viewOf = (message) => views.find((view) => view.message === message);
const lastMessage = () => chat.messages[chat.messages.length - 1];
const lastUserIndex = () => chat.messages.findLastIndex((message) => message.role === "user");

const actions = {
  retry: () => answerAgain(),
  results: (messages) => sendMessages(messages),
  edit: () => startEditing(),
  isLast: (message) => message === lastMessage(),
  isLastUser: (message) => message === chat.messages[lastUserIndex()],
};

function makeView(message) {
  if (message.role === "user") return new UserView(message, actions);
  if (message.role === "tool") return new ToolView(message);
  return new AnswerView(message, actions);
}

// Brings the list of views in line with the messages; those that stay are told that they may no longer be the last.
function drawMessages() {
  const kept = views.filter((view) => chat.messages.includes(view.message));
  for (const view of views) if (!kept.includes(view)) view.element.remove();
  views = chat.messages.map((message) => kept.find((view) => view.message === message) ?? makeView(message));
  const run = runs.get(chat.id) ?? null;
  for (const view of views) {
    if (!view.element.isConnected) byId("messages").append(view.element);
    view.update(run?.message === view.message ? run : null);
  }
  byId("welcome").hidden = views.length > 0;
}

function scrollToEnd() {
  const scroll = byId("scroll");
  scroll.scrollTop = scroll.scrollHeight;
}

function noteScroll() {
  const scroll = byId("scroll");
  isAtEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < kNearEnd;
  byId("to-end").hidden = isAtEnd;
}

function drawFrame() {
  const isRunning = runs.has(chat.id);
  byId("title").textContent = titleOf(chat);
  document.title = chat.title ? `${chat.title} – glint` : "glint";
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  byId("send").disabled = server.status !== "ok";
  byId("open-menu").disabled = chat.messages.length === 0;
  const usage = chat.messages.findLast((message) => message.usage)?.usage;
  const used = usage ? usage.prompt + usage.completion : 0;
  byId("context").textContent = used && server.context ? `${used.toLocaleString("en")} / ${server.context.toLocaleString("en")}` : "";
  byId("context").title = "Tokens of the model's context that this conversation takes";
  showChats(store.listChats(), chat.id, (id) => runs.has(id), openChat);
}

// ---- conversations

function show(next) {
  stopEditing();
  chat = next;
  views = [];
  byId("messages").replaceChildren();
  history.replaceState(null, "", chat.messages.length > 0 ? `#${chat.id}` : location.pathname + location.search);
  drawMessages();
  drawFrame();
  isAtEnd = true;
  scrollToEnd();
  noteScroll();
}

function openChat(id) {
  const next = runs.get(id)?.chat ?? store.loadChat(id);
  if (!next) return notify("This conversation is gone.");
  show(next);
  if (sidebar.close()) return;
  byId("input").focus();
}

function startNewChat() {
  show(store.newChat());
  sidebar.close();
  byId("input").focus();
}

function save(which) {
  if (store.saveChat(which)) return;
  notify("The browser has no room left: export or delete some conversations.");
}

function deleteChat() {
  const gone = chat;
  runs.get(gone.id)?.stop();
  runs.delete(gone.id);
  store.removeChat(gone.id);
  show(store.newChat());
  byId("input").focus();
  notify(`“${titleOf(gone)}” was deleted.`, "Undo", () => {
    for (const message of gone.messages) if (message.running) Object.assign(message, { running: false, finish: "stopped" });
    save(gone);
    openChat(gone.id);
  });
}

function startRename() {
  byId("title").hidden = true;
  byId("rename").hidden = false;
  byId("rename-field").value = titleOf(chat);
  byId("rename-field").select();
  byId("rename-field").focus();
}

function endRename(isKept) {
  if (byId("rename").hidden) return;
  byId("rename").hidden = true;
  byId("title").hidden = false;
  const title = byId("rename-field").value.trim();
  if (isKept && title) {
    chat.title = title;
    save(chat);
  }
  drawFrame();
  byId("input").focus();
}

const fileNameOf = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60).toLowerCase() || "conversation";

function exportChat() {
  download(`${fileNameOf(titleOf(chat))}.json`, JSON.stringify(chat, null, 2));
}

function exportAll() {
  const chats = store.listChats().map((entry) => store.loadChat(entry.id));
  download("glint-conversations.json", JSON.stringify(chats, null, 2));
}

async function importChats(file) {
  let read = null;
  try {
    read = JSON.parse(await file.text());
  } catch {
    return notify("This file is not JSON.");
  }
  const chats = (Array.isArray(read) ? read : [read]).map(store.cleanChat).filter(Boolean);
  const isKept = chats.every((one) => store.saveChat(one));
  drawFrame();
  if (!isKept) return notify("The browser has no room for all of them.");
  notify(chats.length === 0 ? "There is no conversation in this file." : `${chats.length} imported.`);
}

function deleteAll() {
  if (!confirm("Delete all conversations in this browser?")) return;
  for (const run of runs.values()) run.stop();
  runs.clear();
  for (const entry of store.listChats()) store.removeChat(entry.id);
  byId("settings").close();
  startNewChat();
}

// ---- asking

function titleFrom(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 58).trimEnd()}…` : line;
}

function sendMessages(messages) {
  if (runs.has(chat.id)) return;
  chat.messages.push(...messages);
  const isFirst = chat.title === "" && messages[0].role === "user";
  if (isFirst) chat.title = titleFrom(messages[0].content);
  answer();
}

function answerAgain() {
  if (runs.has(chat.id)) return;
  if (lastMessage()?.role === "assistant") chat.messages.pop();
  answer();
}

function answer() {
  const message = newAnswer();
  const run = new Run(chat, message, scheduleDraw);
  let body = null;
  try {
    body = chatBody(chat.messages, settings, modelName());
  } catch (error) {
    return openSettings(settings, "tools"), notify(`Tools: ${error.message}`);
  }
  chat.messages.push(message);
  chat.updated = Date.now();
  runs.set(chat.id, run);
  save(chat);
  history.replaceState(null, "", `#${chat.id}`);
  drawMessages();
  drawFrame();
  isAtEnd = true;
  scrollToEnd();
  if (!isTouch.matches) byId("input").focus(); // what was clicked is gone or hidden now
  announce("Answering");
  run.start(body, store.loadKey()).then(() => finish(run));
}

function finish(run) {
  const { message } = run;
  const isCurrent = runs.get(run.chat.id) === run;
  if (!isCurrent) return; // deleted meanwhile
  if (isLeaving) return void setTimeout(finish, kLeavingMs, run);
  runs.delete(run.chat.id);
  run.chat.updated = Date.now();
  save(run.chat);
  if (run.chat === chat) {
    viewOf(message)?.update(null);
    if (isAtEnd) scrollToEnd();
    noteScroll();
    announce(message.error ? "" : message.finish === "stopped" ? "Stopped" : "The answer is complete");
  }
  drawFrame();
  if (message.error?.status === 401) askForKey();
  if (message.error?.code === "unreachable" || message.error?.status === 503) watchServer();
}

function submit() {
  const input = byId("input");
  const text = input.value.trim();
  if (text === "" || runs.has(chat.id)) return;
  if (server.status !== "ok") return announce(byId("state").textContent);
  if (editing) chat.messages.splice(lastUserIndex());
  stopEditing();
  input.value = "";
  fitInput();
  sendMessages([{ role: "user", content: text }]);
}

function startEditing() {
  const index = lastUserIndex();
  if (index < 0 || runs.has(chat.id)) return;
  editing = true;
  byId("editing").hidden = false;
  byId("input").value = chat.messages[index].content;
  fitInput();
  byId("input").focus();
}

function stopEditing() {
  if (!editing) return false;
  editing = false;
  byId("editing").hidden = true;
  byId("input").value = "";
  fitInput();
  return true;
}

// Where the browser cannot size the field by its text, this does.
function fitInput() {
  const input = byId("input");
  if (CSS.supports("field-sizing", "content")) return;
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

// ---- the server

const kStates = {
  loading: "The model is loading. You can write already.",
  draining: "The server is shutting down.",
  unreachable: "The server cannot be reached. Trying again…",
};

const modelName = () => (server.models.some((model) => model.id === settings.model) ? settings.model : (server.models[0]?.id ?? ""));

function showState() {
  const text = kStates[server.status] ?? "";
  const state = byId("state");
  state.hidden = text === "";
  state.textContent = text;
  state.classList.toggle("busy", server.status === "loading");
  drawFrame();
}

let isWatching = false;

// Asks until the server is ready, then which models it has.
async function watchServer() {
  if (isWatching) return;
  isWatching = true;
  for (let wait = 500; ; wait = Math.min(wait * 1.5, 5000)) {
    server.status = await serverStatus();
    showState();
    if (server.status === "ok") break;
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
  isWatching = false;
  await readModels();
}

async function readModels() {
  try {
    server.models = await listModels(store.loadKey());
    if (!byId("key-group").hidden) showKeyField(true);
  } catch (error) {
    if (error.status === 401) return askForKey();
    if (error.status === 503 || error.status === 0) return void setTimeout(watchServer, 1000);
    return notify(error.message);
  }
  showModel();
}

function showModel() {
  const name = modelName();
  server.context = server.models.find((model) => model.id === name)?.context ?? 0;
  const hasChoice = server.models.length > 1;
  byId("model-name").hidden = hasChoice;
  byId("model-choice").hidden = !hasChoice;
  byId("model-name").textContent = name;
  byId("model-choice").replaceChildren(...server.models.map((model) => el("option", { value: model.id, selected: model.id === name }, model.id)));
  const examples = name === "demo" ? kDemoExamples : kExamples;
  byId("examples").replaceChildren(...examples.map((text) => el("button", { type: "button", onclick: () => useExample(text) }, text)));
  drawFrame();
}

function useExample(text) {
  byId("input").value = text;
  submit();
  byId("input").focus();
}

function askForKey() {
  const isWrong = store.loadKey() !== "";
  if (!byId("settings").open) openSettings(settings);
  showKeyField(true, isWrong ? "The server did not accept this key." : "This server asks for a key.");
  byId("key").focus();
}

// ---- keys and buttons

const isTouch = matchMedia("(pointer: coarse)");

function onInputKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouch.matches) {
    event.preventDefault();
    submit();
  } else if (event.key === "ArrowUp" && byId("input").value === "" && !editing) {
    event.preventDefault();
    startEditing();
  }
}

function onKey(event) {
  if (byId("settings").open || event.defaultPrevented) return;
  const isTyping = event.target.matches("input, textarea, select");
  if (event.key === "Escape") {
    if (byId("menu").matches(":popover-open") || sidebar.close() || !byId("rename").hidden || stopEditing()) return;
    runs.get(chat.id)?.stop();
    byId("input").focus();
  } else if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    byId("input").focus();
  }
}

function fromMenu(id, action) {
  byId(id).addEventListener("click", () => {
    byId("menu").hidePopover();
    action();
  });
}

function wire() {
  const onClick = (id, action) => byId(id).addEventListener("click", action);
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  byId("input").addEventListener("keydown", onInputKey);
  byId("input").addEventListener("input", fitInput);
  document.addEventListener("keydown", onKey);
  byId("scroll").addEventListener("scroll", noteScroll, { passive: true });
  new ResizeObserver(() => isAtEnd && scrollToEnd()).observe(byId("scroll"));
  onClick("stop", () => {
    runs.get(chat.id)?.stop();
    byId("input").focus();
  });
  onClick("to-end", scrollToEnd);
  onClick("new-chat", startNewChat);
  onClick("cancel-edit", () => {
    stopEditing();
    byId("input").focus();
  });
  onClick("open-settings", () => openSettings(settings));
  onClick("skip", (event) => {
    event.preventDefault();
    byId("input").focus();
  });
  fromMenu("do-rename", startRename);
  fromMenu("do-export", exportChat);
  fromMenu("do-delete", deleteChat);
  onClick("export-chats", exportAll);
  onClick("delete-chats", deleteAll);
  onClick("import-chats", () => byId("import-file").click());
  byId("import-file").addEventListener("change", async (event) => {
    if (event.target.files[0]) await importChats(event.target.files[0]);
    event.target.value = "";
  });
  byId("rename").addEventListener("submit", (event) => {
    event.preventDefault();
    endRename(true);
  });
  byId("rename-field").addEventListener("blur", () => endRename(true));
  byId("rename-field").addEventListener("keydown", (event) => event.key === "Escape" && endRename(false));
  byId("model-choice").addEventListener("change", (event) => {
    settings.model = event.target.value;
    store.saveSettings(settings);
    showModel();
  });
  byId("thinking-chip").addEventListener("change", (event) => {
    settings.thinking = event.target.value;
    store.saveSettings(settings);
  });
}

function onSettings() {
  byId("thinking-chip").value = settings.thinking;
}

// A browser that goes to another page breaks the connections of this one first. What is saved then has no error in it.
// Should the page stay after all, it goes on a little later.
let isLeaving = false;

function leave() {
  saveRunning();
  isLeaving = true;
  setTimeout(() => (isLeaving = false), kLeavingMs - 500);
}

function saveRunning() {
  if (isLeaving) return;
  for (const run of runs.values()) store.saveChat(run.chat);
}

function begin() {
  applyTheme(settings.theme);
  onSettings();
  sidebar = watchSidebar();
  wire();
  showKeyField(store.loadKey() !== "");
  watchSettings(settings, onSettings, readModels);
  store.onForeignChange(drawFrame);
  window.addEventListener("beforeunload", leave);
  window.addEventListener("pagehide", leave);
  setInterval(saveRunning, kSaveEveryMs);
  setInterval(scheduleDraw, 250); // clocks go on while nothing arrives
  const kept = store.loadChat(location.hash.slice(1));
  show(kept ?? chat);
  if (!isTouch.matches) byId("input").focus();
  watchServer();
}

begin();
