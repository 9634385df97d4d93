// The key that opens the server. It lives here, in memory, and nowhere else: not in a URL, not in the browser's
// storage.

import { dialog, toast } from "./dialog.js";
import { h } from "./dom.js";
import { visible } from "./text.js";

// A header cannot carry other characters.
const POSSIBLE = /^[\x21-\x7e]+$/;

/** @type {string | null} */
let known = null;
/** The last key was not taken. */
let wasWrong = false;
/** The person was asked and gave none. What polls must not ask again and again: the button does. */
let isDeclined = false;
/** @type {Promise<string | null> | null} */
let asking = null;

/** Tells of "needed", when the server wants a key, and of "change", when the person gave or forgot one. */
export const keyNews = new EventTarget();

/** The key, if it was given. */
export function key() {
  return known;
}

/** It was wrong. */
export function forgetKey() {
  wasWrong = known !== null;
  known = null;
}

/**
 * Ask for the key; null where the person gives none. All who ask at the same time share one dialog.
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

/** The person wants to go on, so they may be asked again. */
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
  known = field.value();
  wasWrong = false;
  keyNews.dispatchEvent(new Event("change"));
  return known;
}

/** @param {string} reason */
function makeField(reason) {
  const error = h("p", { id: "key-error", class: "error", role: "alert" });
  if (wasWrong) error.textContent = "The server did not take that key.";
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
    error.textContent = value() ? "A key has only printable ASCII characters and no spaces." : "Type the key first.";
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
      h("p", { id: "key-hint", class: "soft small" }, "It is kept in memory until this page is closed or loaded anew."),
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

/** The button that changes or forgets the key. It appears when the server wants one. */
export function makeKeyButton() {
  const button = h("button", { class: "quiet", hidden: true, title: "The key of this server" }, "Key");
  button.addEventListener("click", () => void manage());
  keyNews.addEventListener("needed", () => {
    button.hidden = false;
  });
  return button;
}

async function manage() {
  const chosen = known === null ? "change" : await askWhat();
  if (chosen === "forget") {
    known = null;
    isDeclined = true;
    keyNews.dispatchEvent(new Event("change"));
    toast("The key is forgotten.");
  } else if (chosen === "change") {
    isDeclined = false;
    wasWrong = false;
    await askKey("Give the key that requests of this page are sent with.");
  }
}

function askWhat() {
  return dialog({
    title: "Key",
    body: h("p", {}, "A key is in use. It is only in this page's memory."),
    actions: [
      { label: "Cancel", value: "", kind: "quiet" },
      { label: "Forget key", value: "forget", kind: "danger" },
      { label: "Change key", value: "change", kind: "primary" },
    ],
  });
}
