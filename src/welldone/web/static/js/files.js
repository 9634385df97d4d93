// Saving and opening of files.

import { toast } from "./dialog.js";
import { h } from "./dom.js";
import { bytes } from "./format.js";

const SAVED_MS = 60_000; // the browser has read the blob by then

/**
 * Save a text as a file.
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
 * Open the file picker; null if it is cancelled.
 *
 * @param {string} [accept] file types
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
 * Read a file; null, with a toast, if that fails.
 *
 * @param {File} file
 * @param {number} limit in bytes
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

/** @param {Uint8Array} data */
export function base64(data) {
  let characters = "";
  // In pieces: a call takes a limited number of arguments.
  for (let at = 0; at < data.length; at += 8192) characters += String.fromCharCode(...data.subarray(at, at + 8192));
  return btoa(characters);
}
