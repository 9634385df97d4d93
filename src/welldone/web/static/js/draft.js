// Unsent text, kept for this tab: a reload does not lose it.

import { recallForTab, rememberForTab } from "./local.js";

const MAX_CHARACTERS = 256 * 1024; // a longer text is not kept for a reload

/**
 * Restore the text of an input, and keep it while the user types. Returns a function that keeps it after a change by
 * the page.
 *
 * @param {HTMLTextAreaElement} box
 * @param {string} name
 */
export function keepDraft(box, name) {
  const keep = () => rememberForTab(name, box.value.length <= MAX_CHARACTERS ? box.value : "");
  box.value = recallForTab(name) ?? "";
  box.addEventListener("input", keep);
  return keep;
}
