// Preferences in localStorage, never secrets. Without storage they last until the page is closed.

/** @type {Map<string, string>} */
const here = new Map();

/** @param {string} name */
export function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return here.get(name) ?? null;
  }
}

/**
 * @param {string} name
 * @param {string} value
 */
export function remember(name, value) {
  here.set(name, value);
  try {
    localStorage.setItem(name, value);
  } catch {
    // Storage is full or disabled.
  }
}
