// The API key of the server. Kept for this tab, until it is closed: never in a URL, and never in storage that lasts.

import { dialog, toast } from "./dialog.js";
import { h } from "./dom.js";
import { recallForTab, rememberForTab } from "./local.js";
import { visible } from "./text.js";

// The characters that a header value can contain.
const POSSIBLE = /^[\x21-\x7e]+$/;

const STORED = "welldone.key";

const stored = recallForTab(STORED);
/** @type {string | null} */
let known = stored !== null && POSSIBLE.test(stored) ? stored : null;
/** The server rejected the last key. */
let wasWrong = false;
/** The user gave no key when asked. Polling must not ask again; the button does. */
let isDeclined = false;
/** @type {Promise<string | null> | null} */
let asking = null;

/** Dispatches "needed" when the server requires a key, and "change" when the user set or removed one. */
export const keyNews = new EventTarget();

/** The key, or null. */
export function key() {
  return known;
}

/** The server rejected it. */
export function forgetKey() {
  wasWrong = known !== null;
  set(null);
}

/** @param {string | null} value */
function set(value) {
  known = value;
  rememberForTab(STORED, value ?? "");
}

/**
 * Ask for the key; null if the user gives none. Concurrent calls share one dialog.
 *
 * @param {string} reason
 * @returns {Promise<string | null>}
 */
export function askKey(reason) {
  keyNews.dispatchEvent(new Event("needed"));
  if (isDeclined && !asking) return Promise.resolve(null);
  asking ??= askOnce(reason).finally(() => {
    asking = null;
  });
  return asking;
}

/** Allow asking again, after an action of the user. */
export function mayAskAgain() {
  isDeclined = false;
}

/** @param {string} reason */
async function askOnce(reason) {
  const field = makeField(reason);
  const chosen = await dialog({
    title: "This server needs a key",
    body: field.body,
    actions: [
      { label: "Cancel", value: "" },
      { label: "Use key", value: "use", kind: "primary" },
    ],
    accept: (value) => value !== "use" || field.isGood(),
  });
  isDeclined = chosen !== "use";
  if (isDeclined) return null;
  set(field.value());
  wasWrong = false;
  keyNews.dispatchEvent(new Event("change"));
  return known;
}

/** @param {string} reason */
function makeField(reason) {
  const error = h("p", { id: "key-error", class: "error", role: "alert" });
  if (wasWrong) error.textContent = "The server rejected this key.";
  const input = h("input", {
    id: "key-input",
    type: "password",
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: false,
    autofocus: true,
    required: true,
    "aria-describedby": "key-hint key-error",
  });
  const value = () => input.value.trim();
  const isGood = () => {
    if (POSSIBLE.test(value())) return true;
    error.textContent = value() ? "A key has only printable ASCII characters and no spaces." : "Enter the key.";
    input.setAttribute("aria-invalid", "true");
    input.focus();
    return false;
  };
  const body = [
    h("p", { class: "soft", dir: "auto" }, visible(reason)),
    h(
      "div",
      { class: "field" },
      h("label", { for: "key-input" }, "Key"),
      h("div", { class: "key-row" }, input, makeShowButton(input)),
      h("p", { id: "key-hint", class: "soft small" }, "It is kept for this tab, until the tab is closed."),
      error,
    ),
  ];
  return { body, value, isGood };
}

/** @param {HTMLInputElement} input */
function makeShowButton(input) {
  const button = h("button", { "aria-pressed": "false", "aria-label": "Show key" }, "Show");
  button.addEventListener("click", () => {
    const isShown = input.type === "password";
    input.type = isShown ? "text" : "password";
    button.setAttribute("aria-pressed", String(isShown));
  });
  return button;
}

/** The button to change or remove the key. Shown when the server requires one. */
export function makeKeyButton() {
  const button = h("button", { class: "quiet", hidden: known === null, title: "API key of this server" }, "Key");
  button.addEventListener("click", () => void manage());
  keyNews.addEventListener("needed", () => {
    button.hidden = false;
  });
  return button;
}

async function manage() {
  const chosen = known === null ? "change" : await askWhat();
  if (chosen === "remove") {
    set(null);
    isDeclined = true;
    keyNews.dispatchEvent(new Event("change"));
    toast("The key was removed.");
  } else if (chosen === "change") {
    isDeclined = false;
    wasWrong = false;
    await askKey("Enter the key for the requests of this page.");
  }
}

function askWhat() {
  return dialog({
    title: "Key",
    body: h("p", {}, "A key is set. It is kept for this tab, until the tab is closed."),
    actions: [
      { label: "Cancel", value: "", kind: "quiet" },
      { label: "Remove key", value: "remove", kind: "danger" },
      { label: "Change key", value: "change", kind: "primary" },
    ],
  });
}
