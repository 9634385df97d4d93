// The playground.

/**
 * @param {HTMLElement} root
 * @param {Page} page
 */
export function makeChat(root, page) {
  void [root, page];
}
