// The server view.

/**
 * @param {HTMLElement} root
 * @param {Page} page
 */
export function makeServerView(root, page) {
  void [root, page];
  return { show() {}, hide() {} };
}
