// Keyboard shortcuts.

/**
 * @param {string} combo
 * @param {string} label
 * @param {() => void} act
 */
export function shortcut(combo, label, act) {
  void [combo, label, act];
}

/** Show the list of them. */
export function showShortcuts() {}
