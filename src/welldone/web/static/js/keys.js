// Keyboard shortcuts.

import { dialog } from "./dialog.js";
import { h } from "./dom.js";

/** @typedef {{key: string, alt: boolean, ctrl: boolean, meta: boolean, shift: boolean}} Combo */
/** @typedef {Pick<KeyboardEvent, "key" | "code" | "altKey" | "ctrlKey" | "metaKey" | "shiftKey">} Stroke */

/** @type {Map<string, {combo: Combo, label: string, act: () => void}>} */
const known = new Map();

const MAC_SIGNS = { Alt: "⌥", Ctrl: "⌃", Meta: "⌘", Shift: "⇧" };
// Handled elsewhere; here only for the list.
const IN_THE_CHAT = [
  ["Enter", "Send the message"],
  ["Shift+Enter", "New line"],
  ["Esc", "Stop the answer, or close a panel"],
];
const ARROWS = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→" };

/**
 * @param {string} combo for example "Alt+I", "Ctrl+Enter", "/"
 * @param {string} label
 * @param {() => void} act
 */
export function shortcut(combo, label, act) {
  if (known.size === 0) document.addEventListener("keydown", hear);
  known.set(combo, { combo: parse(combo), label, act });
}

/** Show the list of shortcuts. */
export function showShortcuts() {
  const others = [...known].map(([combo, { label }]) => [combo, label]);
  const rows = [...IN_THE_CHAT, ...others, ["?", "Show this list"]].map(([combo, label]) =>
    h("tr", {}, h("td", {}, caps(combo)), h("td", {}, label)),
  );
  const head = h("tr", {}, h("th", { scope: "col" }, "Keys"), h("th", { scope: "col" }, "Action"));
  const table = h("table", { class: "shortcuts" }, h("thead", {}, head), h("tbody", {}, rows));
  void dialog({ title: "Keyboard shortcuts", body: table });
}

/** @param {KeyboardEvent} event */
function hear(event) {
  if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
  const isCommand = event.altKey || event.ctrlKey || event.metaKey;
  if (!isCommand && isField(event.target)) return;
  if (matches(event, parse("?"))) {
    event.preventDefault();
    showShortcuts();
    return;
  }
  for (const { combo, act } of known.values()) {
    if (!matches(event, combo)) continue;
    event.preventDefault();
    act();
    return;
  }
}

/**
 * @param {string} combo
 * @returns {Combo}
 */
export function parse(combo) {
  const names = combo.split("+");
  const key = /** @type {string} */ (names.pop());
  const has = new Set(names);
  return { key, alt: has.has("Alt"), ctrl: has.has("Ctrl"), meta: has.has("Meta"), shift: has.has("Shift") };
}

/**
 * @param {Stroke} event
 * @param {Combo} combo
 */
export function matches(event, combo) {
  if (event.altKey !== combo.alt || event.ctrlKey !== combo.ctrl || event.metaKey !== combo.meta) return false;
  const isSign = /^[^\p{L}\p{N}]$/u.test(combo.key); // needs Shift on some keyboard layouts
  if (!isSign && event.shiftKey !== combo.shift) return false;
  // Option on a Mac changes the character: use the physical key.
  if (combo.alt && codeOf(combo.key) === event.code) return true;
  return event.key.toLowerCase() === combo.key.toLowerCase();
}

/** @param {string} key */
function codeOf(key) {
  if (/^[a-z]$/i.test(key)) return `Key${key.toUpperCase()}`;
  if (/^[0-9]$/.test(key)) return `Digit${key}`;
  return key;
}

/**
 * Whether an element takes text input.
 *
 * @param {EventTarget | null} target
 */
function isField(target) {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "button", "range"].includes(target.type);
  return target.isContentEditable || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

/**
 * A shortcut as <kbd> elements.
 *
 * @param {string} combo
 */
function caps(combo) {
  const isMac = /^Mac|^iP/.test(navigator.platform);
  return combo.split("+").flatMap((name, n) => [n > 0 && " ", h("kbd", {}, capOf(name, isMac))]);
}

/**
 * @param {string} name
 * @param {boolean} isMac
 */
export function capOf(name, isMac) {
  const signs = /** @type {Record<string, string>} */ (isMac ? { ...MAC_SIGNS, ...ARROWS } : ARROWS);
  return signs[name] ?? name;
}
