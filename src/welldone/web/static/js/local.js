// Preferences in localStorage, never secrets; and values of this tab in sessionStorage, which end with it. Without
// storage both last until the page is closed.

/** @type {Map<string, string>} */
const here = new Map();

/** @param {string} name */
export function recall(name) {
  return read(() => localStorage, name);
}

/**
 * @param {string} name
 * @param {string} value
 */
export function remember(name, value) {
  write(() => localStorage, name, value);
}

/**
 * A value of this tab. The name of the page is part of its name: other pages of this origin have their own.
 *
 * @param {string} name
 */
export function recallForTab(name) {
  return read(() => sessionStorage, tabName(name));
}

/**
 * @param {string} name
 * @param {string} value empty: it is removed
 */
export function rememberForTab(name, value) {
  write(() => sessionStorage, tabName(name), value);
}

/** @param {string} name */
function tabName(name) {
  return name + (globalThis.location?.pathname ?? ""); // there is none in Node, which runs unit tests
}

/**
 * @param {() => Storage} storage access to it may be denied
 * @param {string} name
 */
function read(storage, name) {
  try {
    return storage().getItem(name);
  } catch {
    return here.get(name) ?? null;
  }
}

/**
 * @param {() => Storage} storage
 * @param {string} name
 * @param {string} value
 */
function write(storage, name, value) {
  here.set(name, value);
  try {
    if (value) storage().setItem(name, value);
    else storage().removeItem(name);
  } catch {
    // Storage is full or disabled.
  }
}
