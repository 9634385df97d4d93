// Modal dialogs and toasts.

import { h } from "./dom.js";
import { visible } from "./text.js";

/** @import { Child } from "./dom.js" */

/** @typedef {{label: string, value: string, kind?: "primary" | "danger" | "quiet"}} Action */

const MAX_TOASTS = 3; // more are not read
const INFO_MS = 6_000; // time to read two lines
const ACTION_MS = 12_000; // and to reach a button

let names = 0;

/**
 * Show a modal dialog. Resolves to the value of the chosen action, or null after Escape. Enter chooses the primary
 * action. If `accept` returns false, the dialog stays open.
 *
 * @param {{title: string, body: Child | Child[], actions?: Action[], accept?: (value: string) => boolean}} parts
 * @returns {Promise<string | null>}
 */
export function dialog({ title, body, actions = [{ label: "Close", value: "close" }], accept = () => true }) {
  const name = `dialog-${++names}`;
  const box = h("dialog", { class: "dialog", "aria-labelledby": name });
  return new Promise((settle) => {
    /** @type {string | null} */
    let chosen = null;
    /** @param {string} value */
    const choose = (value) => {
      if (!accept(value)) return;
      chosen = value;
      box.close();
    };
    const primary = actions.find(({ kind }) => kind === "primary");
    const form = h(
      "form",
      { noValidate: true },
      h("h2", { id: name, dir: "auto" }, visible(title)),
      h("div", {}, body),
      h("div", { class: "dialog-actions" }, actions.map((action) => makeAction(action, choose))),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (primary) choose(primary.value);
    });
    box.append(form);
    box.addEventListener("close", () => {
      box.remove();
      settle(chosen);
    });
    document.body.append(box);
    box.showModal();
  });
}

/**
 * @param {Action} action
 * @param {(value: string) => void} choose
 */
function makeAction({ label, value, kind }, choose) {
  if (kind === "primary") return h("button", { type: "submit", class: "primary" }, label);
  return h("button", { class: kind ?? "", on: { click: () => choose(value) } }, label);
}

/**
 * Ask for confirmation.
 *
 * @param {string} title
 * @param {string} text
 * @param {string} label of the confirming button
 */
export async function confirm(title, text, label) {
  const actions = /** @type {Action[]} */ ([
    { label: "Cancel", value: "" },
    { label, value: "yes", kind: "danger" },
  ]);
  return (await dialog({ title, body: h("p", {}, text), actions })) === "yes";
}

/**
 * Show a toast; the message may be untrusted. An error stays until it is dismissed.
 *
 * @param {string} message
 * @param {"info" | "error"} [kind]
 * @param {{label: string, act: () => void}} [action]
 */
export function toast(message, kind = "info", action) {
  const regions = { info: region("info", "status"), error: region("error", "alert") };
  const shown = [...document.querySelectorAll(".toast")];
  // A repeated message replaces the earlier one.
  const text = visible(message);
  const same = shown.filter((other) => other.querySelector(".toast-text")?.textContent === text);
  const others = shown.filter((other) => !same.includes(other));
  for (const gone of [...same, ...others.slice(0, Math.max(0, others.length - MAX_TOASTS + 1))]) gone.remove();
  regions[kind].append(makeToast(text, kind, action));
}

/**
 * @param {string} text
 * @param {"info" | "error"} kind
 * @param {{label: string, act: () => void}} [action]
 */
function makeToast(text, kind, action) {
  const box = h("div", { class: `toast ${kind}` }, h("span", { class: "toast-text", dir: "auto" }, text));
  const go = () => {
    const hadFocus = box.contains(document.activeElement);
    box.remove();
    // Move the focus out of the removed element.
    if (hadFocus) document.querySelector("main")?.focus();
  };
  if (action) {
    const act = () => {
      go();
      action.act();
    };
    box.append(h("button", { class: "mini", on: { click: act } }, action.label));
  }
  box.append(h("button", { class: "quiet mini", "aria-label": "Dismiss", on: { click: go } }, "✕"));
  if (kind === "info") setTimeout(go, action ? ACTION_MS : INFO_MS);
  return box;
}

/**
 * The live region for toasts.
 *
 * @param {string} kind
 * @param {"status" | "alert"} role
 * @returns {Element}
 */
function region(kind, role) {
  const all = document.querySelector(".toasts") ?? document.body.appendChild(h("div", { class: "toasts" }));
  return all.querySelector(`.toasts-${kind}`) ?? all.appendChild(h("div", { class: `toasts-${kind}`, role }));
}
