// Text that leaves the page: to the clipboard, or as a file.

import { toast } from "../dialog.js";
import { h } from "../dom.js";

/** By then the browser has the file. */
const SAVED_MS = 10_000;

/**
 * @param {string} label what a screen reader says
 * @param {() => string} text
 * @param {string} [title] what is on the button
 */
export function copyButton(label, text, title = "Copy") {
  return h("button", { type: "button", class: "quiet mini", "aria-label": label, title: label,
    on: { click: () => void copy(text()) } }, title);
}

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    // Browsers give no clipboard to pages that came over plain HTTP from another machine.
    toast("The browser does not let this page use the clipboard", "error");
  }
}

/**
 * @param {string} name
 * @param {string} text
 * @param {string} [type]
 */
export function save(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), SAVED_MS);
}
