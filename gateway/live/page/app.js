// The page: its views, theme, key, and when it watches the feed.

import { hasKey, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { demo, takeToken } from "./demo.js";
import { Live } from "./live.js";
import { Replay } from "./replay.js";

const VIEWS = ["iterations", "chat", "replay"];
const THEME = "orca.theme";
const WIDE = matchMedia("(min-width: 1100px)"); // the chat then has the charts beside it
const NARROW = matchMedia("(max-width: 600px)");
const DARK = matchMedia("(prefers-color-scheme: dark)");
const element = (id) => document.getElementById(id);

demo();
element("legend").open = !NARROW.matches;
const live = new Live(askForKey);
const chat = new Chat((status) => status === 401 && askForKey());
const replay = new Replay();
let view = "";

function choose(name, focus = false) {
  view = VIEWS.includes(name) ? name : VIEWS[0];
  document.body.dataset.view = view;
  for (const tab of document.querySelectorAll('[role="tab"]')) {
    const chosen = tab.id === `tab-${view}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen && focus) tab.focus();
  }
  if (view === "replay") replay.show();
  else replay.hide();
  look();
}

/** Watch the feed only while its charts are visible. */
function look() {
  const shown = view === "iterations" || (view === "chat" && WIDE.matches);
  live.watch(shown && !document.hidden);
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  const next = name === "dark" ? "light" : "dark";
  element("theme").setAttribute("aria-label", `Switch to ${next} colours`);
  live.restyle();
  replay.restyle();
}

function askForKey() {
  const dialog = element("key-dialog");
  element("key-wrong").hidden = !hasKey();
  if (!dialog.open) dialog.showModal();
}

element("key-form").addEventListener("submit", () => {
  setKey(element("key").value.trim());
  live.watch(false);
  look();
  chat.models();
});
element("theme").addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem(THEME, name);
  theme(name);
});
DARK.addEventListener("change", () => localStorage.getItem(THEME) ?? theme(DARK.matches ? "dark" : "light"));
WIDE.addEventListener("change", look);
document.addEventListener("visibilitychange", look);
addEventListener("hashchange", () => {
  takeToken();
  choose(location.hash.slice(1));
});
for (const tab of document.querySelectorAll('[role="tab"]')) {
  tab.addEventListener("click", () => (location.hash = tab.id.slice("tab-".length)));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = VIEWS[(VIEWS.indexOf(view) + step + VIEWS.length) % VIEWS.length];
    location.hash = next;
    choose(next, true);
  });
}

theme(localStorage.getItem(THEME) ?? (DARK.matches ? "dark" : "light"));
choose(location.hash.slice(1));
chat.models();
