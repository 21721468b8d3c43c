// Small pieces that every part of the page builds with: elements without markup strings, icons, notices, the clipboard.

const kSvg = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

// An element. Attributes named on* are listeners; null, undefined and false leave an attribute or a child out.
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// One of the symbols in index.html.
export function icon(name) {
  const svg = document.createElementNS(kSvg, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(kSvg, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

// A button that shows an icon and says its name to those who cannot see it.
export function iconButton(name, label, onclick) {
  return el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick }, icon(name));
}

// The clipboard API is there on secure origins only; a server in the local network has none.
async function writeClipboard(text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = el("textarea", { class: "off-screen", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser refused");
}

// A button that copies what `getText` returns and shows that it did.
export function copyButton(label, getText) {
  const button = iconButton("copy", label, async () => {
    try {
      await writeClipboard(getText());
    } catch {
      return notify("The browser did not allow copying.");
    }
    button.replaceChildren(icon("check"));
    button.classList.add("good");
    announce("Copied");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.classList.remove("good");
    }, 1500);
  });
  return button;
}

// Says something to screen readers only.
export function announce(text) {
  byId("announce").textContent = text;
}

let noticeTimer = 0;

// A notice at the bottom, with at most one action. It waits while it has the pointer or the focus.
export function notify(text, actionLabel = null, action = null) {
  const notice = byId("notice");
  const hide = () => notice.replaceChildren();
  const arm = () => {
    clearTimeout(noticeTimer);
    noticeTimer = setTimeout(() => (notice.matches(":hover, :focus-within") ? arm() : hide()), action ? 12000 : 5000);
  };
  const run = () => {
    hide();
    action();
  };
  notice.replaceChildren(
    el("span", {}, text),
    action && el("button", { type: "button", class: "plain", onclick: run }, actionLabel),
    iconButton("close", "Dismiss", hide),
  );
  arm();
}

// Hands `text` to the user as a file.
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
