// Files that the person saves or picks.

import { toast } from "./dialog.js";
import { h } from "./dom.js";
import { bytes } from "./format.js";

const SAVED_MS = 60_000; // by then the browser has read what it saves

/**
 * Save as a file.
 *
 * @param {string} name
 * @param {string | Blob} content
 */
export function save(name, content) {
  const blob = typeof content === "string" ? new Blob([content], { type: "text/plain;charset=utf-8" }) : content;
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name.replace(/[^\w.-]+/g, "-") }).click();
  setTimeout(() => URL.revokeObjectURL(url), SAVED_MS);
}

/**
 * Let the person pick a file and read it as text; null where they pick none, or one that is too large.
 *
 * @param {{accept: string, limitBytes: number}} wanted
 * @returns {Promise<{name: string, text: string} | null>}
 */
export function pick({ accept, limitBytes }) {
  return new Promise((settle) => {
    const input = h("input", { type: "file", accept });
    input.addEventListener("cancel", () => settle(null));
    input.addEventListener("change", () => settle(input.files?.[0] ? read(input.files[0], limitBytes) : null));
    input.click();
  });
}

/**
 * Read a picked or dropped file as text; null, and a message, where that cannot be.
 *
 * @param {File} file
 * @param {number} limitBytes
 */
export async function read(file, limitBytes) {
  if (file.size > limitBytes) {
    toast(`${file.name} is too large: ${bytes(file.size)} of at most ${bytes(limitBytes)}.`, "error");
    return null;
  }
  try {
    return { name: file.name, text: await file.text() };
  } catch {
    toast(`${file.name} cannot be read.`, "error");
    return null;
  }
}
