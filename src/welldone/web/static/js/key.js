// The key that opens the server. It lives here, in memory, and nowhere else: not in a URL, not in the browser's storage.

/** @type {string | null} */
let known = null;

/** The key, if it was given. */
export function key() {
  return known;
}

/** It was wrong. */
export function forgetKey() {
  known = null;
}

/**
 * Ask for the key; null where the person gives none.
 *
 * @param {string} reason
 * @returns {Promise<string | null>}
 */
export async function askKey(reason) {
  known = prompt(reason);
  return known;
}
