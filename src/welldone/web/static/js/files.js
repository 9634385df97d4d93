// Files that the person saves or picks.

import { toast } from "./dialog.js";
import { h } from "./dom.js";
import { bytes } from "./format.js";

const SAVED_MS = 60_000; // by then the browser has read what it saves

/**
 * Save as a file.
 *
 * @param {string} name
 * @param {string} text
 * @param {string} [type]
 */
export function save(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name.replace(/[^\w.-]+/g, "-") }).click();
  setTimeout(() => URL.revokeObjectURL(url), SAVED_MS);
}

/**
 * Let the person pick a file; null where they pick none.
 *
 * @param {string} [accept] which files can be picked
 * @returns {Promise<File | null>}
 */
export function pick(accept = "") {
  return new Promise((settle) => {
    const input = h("input", { type: "file", accept });
    input.addEventListener("cancel", () => settle(null));
    input.addEventListener("change", () => settle(input.files?.[0] ?? null));
    input.click();
  });
}

/**
 * The bytes of a file; null, and a message, where they cannot be had.
 *
 * @param {File} file
 * @param {number} limit of bytes
 */
export async function read(file, limit) {
  if (file.size > limit) {
    toast(`${file.name} is too large: ${bytes(file.size)} of at most ${bytes(limit)}.`, "error");
    return null;
  }
  try {
    return new Uint8Array(await file.arrayBuffer());
  } catch {
    toast(`${file.name} cannot be read.`, "error");
    return null;
  }
}
