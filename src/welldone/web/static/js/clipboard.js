// Copying.

import { toast } from "./dialog.js";
import { h } from "./dom.js";

/**
 * A button that copies what is there when it is pressed.
 *
 * @param {string} label what a screen reader says
 * @param {() => string} text
 * @param {string} [title] what is on the button
 */
export function copyButton(label, text, title = "Copy") {
  const props = { class: "quiet mini", "aria-label": label, title: label };
  return h("button", { ...props, on: { click: () => void copy(text()) } }, title);
}

/**
 * Put a text on the clipboard, and say whether that worked.
 *
 * @param {string} text
 */
export async function copy(text) {
  if (await hasTaken(text)) toast("Copied.");
  else toast("The browser does not let this page copy.", "error");
}

/** @param {string} text */
async function hasTaken(text) {
  // Browsers have `clipboard` only where the page is local or came by HTTPS.
  if (!navigator.clipboard) return copyBySelection(text);
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

/** @param {string} text */
function copyBySelection(text) {
  const focused = document.activeElement;
  const area = h("textarea", { value: text, class: "sr-only" });
  // Within an open dialog, since nothing outside of it can be selected.
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
