// Copying to the clipboard.

import { toast } from "./dialog.js";
import { h } from "./dom.js";

/**
 * A button that copies the text at the time of the click.
 *
 * @param {string} label accessible name
 * @param {() => string} text
 * @param {string} [title] visible text
 */
export function copyButton(label, text, title = "Copy") {
  const props = { class: "quiet mini", "aria-label": label, title: label };
  return h("button", { ...props, on: { click: () => void copy(text()) } }, title);
}

/**
 * Copy a text and show whether it worked.
 *
 * @param {string} text
 */
export async function copy(text) {
  if (await writeText(text)) toast("Copied.");
  else toast("The browser did not allow copying.", "error");
}

/** @param {string} text */
async function writeText(text) {
  // `navigator.clipboard` exists only in secure contexts (HTTPS or localhost).
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
  // In an open modal dialog, since nothing outside of it can be selected.
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
