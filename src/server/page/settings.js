// The settings' dialog. Every change counts at once and is kept; there is nothing to save.
import { byId } from "./dom.js";
import { parseTools } from "./run.js";
import * as store from "./store.js";

export function applyTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

const choiceOf = (name) => document.querySelector(`input[name=${name}]:checked`)?.value;

function setChoice(name, value) {
  const radio = document.querySelector(`input[name=${name}][value=${value}]`);
  if (radio) radio.checked = true;
}

// The number in a field, null when it is empty; shows what is wrong with it.
function numberIn(id, isGood, complaint) {
  const field = byId(id);
  const text = field.value.trim();
  const value = Number(text);
  const isWrong = field.validity.badInput || (text !== "" && !(Number.isFinite(value) && isGood(value)));
  showComplaint(id, isWrong ? complaint : "");
  return isWrong || text === "" ? null : value;
}

function showComplaint(id, text) {
  byId(id).setAttribute("aria-invalid", text ? "true" : "false");
  byId(`${id}-error`).textContent = text;
}

function toolsIn() {
  const text = byId("tools").value;
  try {
    parseTools(text);
    showComplaint("tools", "");
    return text;
  } catch (error) {
    showComplaint("tools", error.message);
    return null;
  }
}

function readForm(settings) {
  settings.temperature = numberIn("temperature", (value) => value >= 0, "A number from 0 upwards, or nothing.");
  settings.maxTokens = numberIn("max-tokens", (value) => value >= 1 && Number.isInteger(value), "A whole number from 1 upwards, or nothing.");
  settings.thinking = choiceOf("thinking");
  settings.system = byId("system").value;
  settings.theme = choiceOf("theme");
  settings.tools = toolsIn() ?? settings.tools;
}

export function showSettings(settings) {
  byId("temperature").value = settings.temperature ?? "";
  byId("max-tokens").value = settings.maxTokens ?? "";
  setChoice("thinking", settings.thinking);
  byId("system").value = settings.system;
  byId("tools").value = settings.tools;
  byId("more").open = settings.tools !== "";
  setChoice("theme", settings.theme);
  byId("key").value = store.loadKey();
  byId("remember-key").checked = store.isKeyRemembered();
}

// Opens the dialog; `focus` is the field to start in.
export function openSettings(settings, focus = null) {
  showSettings(settings);
  for (const id of ["temperature", "max-tokens", "tools"]) showComplaint(id, "");
  byId("settings").showModal();
  if (focus) byId(focus).focus();
}

// The key field is there when the server asks for a key, or has been given one.
export function showKeyField(isNeeded, complaint = "") {
  byId("key-group").hidden = !isNeeded;
  byId("key-error").textContent = complaint;
}

// Calls `onChange` after every change, `onKey` after one of the key.
export function watchSettings(settings, onChange, onKey) {
  byId("settings-form").addEventListener("submit", (event) => {
    event.preventDefault();
    byId("settings").close();
  });
  byId("settings-form").addEventListener("input", (event) => {
    if (event.target.id === "key" || event.target.id === "remember-key") return;
    readForm(settings);
    applyTheme(settings.theme);
    store.saveSettings(settings);
    onChange();
  });
  const readKey = () => {
    const key = byId("key").value.trim();
    if (!/^[\x21-\x7e]*$/.test(key)) return showKeyField(true, "A key has letters, digits and signs only, no spaces.");
    showKeyField(true);
    store.saveKey(key, byId("remember-key").checked);
    onKey();
  };
  byId("key").addEventListener("change", readKey);
  byId("remember-key").addEventListener("change", readKey);
  // A click beside the dialog closes it.
  byId("settings").addEventListener("click", (event) => {
    if (event.target === byId("settings")) byId("settings").close();
  });
}
