// Entry point: the views and the top bar.

import { makeApi } from "./api.js";
import { makeChat } from "./chat/index.js";
import { makeCompare } from "./compare/index.js";
import { toast } from "./dialog.js";
import { h } from "./dom.js";
import { makeInspector } from "./inspector/index.js";
import { makeKeyButton } from "./key.js";
import { showShortcuts, shortcut } from "./keys.js";
import { recall, remember } from "./local.js";
import { Rules } from "./rules.js";
import { makeServerView } from "./server/index.js";
import { makeThemeButton } from "./theme.js";

const VIEWS = /** @type {const} */ ({ chat: "Chat", server: "Server", compare: "Compare" });
const OPEN = "welldone.inspector"; // whether the inspector is open

/** @typedef {keyof typeof VIEWS} View */

function start() {
  const base = new URL(".", document.baseURI);
  /** @type {Page} */
  const page = { bus: new EventTarget(), base, ...makeApi(base) };
  const rules = new Rules(page);
  const rooms = { chat: byId("chat"), server: byId("server"), compare: byId("compare") };
  const polling = { server: makeServerView(rooms.server, page), compare: makeCompare(rooms.compare, page, rules) };
  makeInspector(byId("inspector"), page, rules);
  const tabs = makeTabs();
  /** @param {View} view */
  const show = (view) => {
    for (const name of /** @type {View[]} */ (Object.keys(VIEWS))) {
      rooms[name].hidden = name !== view;
      tabs[name].setAttribute("aria-current", name === view ? "page" : "false");
    }
    document.body.dataset.view = view;
    for (const [name, { show: begin, hide }] of Object.entries(polling)) (name === view ? begin : hide)();
  };
  window.addEventListener("hashchange", () => show(viewOf(location.hash)));
  page.bus.addEventListener("view", (event) => {
    location.hash = /** @type {CustomEvent<View>} */ (event).detail;
  });
  makeTools(page);
  show(viewOf(location.hash));
  makeChat(rooms.chat, page);
}

/** @returns {Record<View, HTMLAnchorElement>} */
function makeTabs() {
  const links = Object.entries(VIEWS).map(([name, title]) => [name, h("a", { href: `#${name}`, class: "tab" }, title)]);
  byClass("views").append(...links.map(([, link]) => link));
  return Object.fromEntries(links);
}

/** @param {Page} page */
function makeTools(page) {
  const inspector = makeInspectorButton(page);
  byClass("tools").append(
    inspector,
    makeKeyButton(),
    makeThemeButton(),
    h("button", { class: "quiet", "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts (?)",
      on: { click: showShortcuts } }, "?"),
  );
  shortcut("Alt+I", "Show or hide the stream inspector", () => inspector.click());
  shortcut("Alt+1", "Go to the chat", () => page.bus.dispatchEvent(new CustomEvent("view", { detail: "chat" })));
  shortcut("Alt+2", "Go to the server view", () =>
    page.bus.dispatchEvent(new CustomEvent("view", { detail: "server" })),
  );
  shortcut("Alt+3", "Compare side by side", () =>
    page.bus.dispatchEvent(new CustomEvent("view", { detail: "compare" })),
  );
}

/** @param {Page} page */
function makeInspectorButton(page) {
  const room = byId("inspector");
  const button = h("button", { "aria-controls": "inspector" }, "Inspector");
  /** @param {boolean} isOpen */
  const open = (isOpen) => {
    room.hidden = !isOpen;
    button.setAttribute("aria-pressed", String(isOpen));
    document.body.dataset.inspector = isOpen ? "open" : "closed";
  };
  button.addEventListener("click", () => {
    open(room.hidden);
    remember(OPEN, String(!room.hidden));
  });
  page.bus.addEventListener("trace", () => open(true));
  page.bus.addEventListener("close-inspector", () => {
    open(false);
    remember(OPEN, "false");
  });
  // Closed until the user opens it. On a narrow screen it covers the chat, so that it always starts closed.
  const isWide = matchMedia("(min-width: 1100px)").matches;
  open(isWide && recall(OPEN) === "true");
  return button;
}

/**
 * @param {string} hash
 * @returns {View}
 */
function viewOf(hash) {
  const name = hash.slice(1);
  return name in VIEWS ? /** @type {View} */ (name) : "chat";
}

/** @param {string} id */
function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`#${id} is missing`);
  return found;
}

/** @param {string} name */
function byClass(name) {
  const found = document.querySelector(`.${name}`);
  if (!(found instanceof HTMLElement)) throw new Error(`.${name} is missing`);
  return found;
}

window.addEventListener("unhandledrejection", (event) => toast(String(event.reason?.message ?? event.reason), "error"));
start();
