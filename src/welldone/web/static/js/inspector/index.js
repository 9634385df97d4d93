// The stream inspector.

/**
 * @param {HTMLElement} root
 * @param {Page} page
 */
export function makeInspector(root, page) {
  void [root, page];
}
