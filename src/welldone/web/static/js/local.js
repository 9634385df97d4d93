// Small choices that the browser remembers: looks, never secrets. Where it may not store anything, they last as long as
// the page.

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
    // It is full, or the browser was told to keep nothing.
  }
}
