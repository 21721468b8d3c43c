// The list of conversations.
import { byId, el } from "./dom.js";

const kDay = 24 * 3600 * 1000;

function groupOf(updated) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (updated >= midnight) return "Today";
  if (updated >= midnight - kDay) return "Yesterday";
  if (updated >= midnight - 7 * kDay) return "Last 7 days";
  return "Older";
}

export const titleOf = (chat) => chat.title || "New conversation";

// Lists `chats`, the newest first; `open(id)` is called for the one that is clicked.
export function showChats(chats, currentId, isRunning, open) {
  const groups = new Map();
  for (const chat of chats) {
    const name = groupOf(chat.updated);
    if (!groups.has(name)) groups.set(name, el("ul", { "aria-label": name }));
    const button = el(
      "button",
      { type: "button", class: "chat", "aria-current": chat.id === currentId ? "page" : null, onclick: () => open(chat.id) },
      el("span", { class: "chat-title", dir: "auto" }, titleOf(chat)),
      isRunning(chat.id) && el("span", { class: "chat-running", role: "img", "aria-label": "answering" }),
    );
    groups.get(name).append(el("li", {}, button));
  }
  const parts = [...groups].flatMap(([name, list]) => [el("h3", { "aria-hidden": "true" }, name), list]);
  if (parts.length === 0) parts.push(el("p", { class: "none" }, "Your conversations stay in this browser and are listed here."));
  byId("chats").replaceChildren(...parts);
}

const isPhone = () => matchMedia("(max-width: 760px)").matches;

// On a phone the list is a drawer over the page; elsewhere a column that can be folded away.
export function watchSidebar() {
  const root = document.documentElement;
  const set = (isOpen) => {
    root.classList.toggle("drawer", isOpen && isPhone());
    if (!isPhone()) root.classList.toggle("folded", !isOpen);
    byId("toggle-list").setAttribute("aria-expanded", String(isOpen));
    byId("main").inert = isOpen && isPhone();
    if (isOpen) byId("new-chat").focus();
  };
  const isOpen = () => (isPhone() ? root.classList.contains("drawer") : !root.classList.contains("folded"));
  const close = () => {
    if (!root.classList.contains("drawer")) return false;
    set(false);
    byId("toggle-list").focus();
    return true;
  };
  byId("toggle-list").addEventListener("click", () => set(!isOpen()));
  byId("curtain").addEventListener("click", close);
  matchMedia("(max-width: 760px)").addEventListener("change", () => {
    root.classList.remove("drawer");
    byId("main").inert = false;
    byId("toggle-list").setAttribute("aria-expanded", String(isOpen()));
  });
  byId("toggle-list").setAttribute("aria-expanded", String(isOpen()));
  return { close };
}
