// Validation of link addresses.

const SAFE = /^(?:https?:\/\/|mailto:)[^\s]/i;

/**
 * The normalized address; null if it is not safe to follow. User names and passwords in it only obscure the target.
 *
 * @param {string} address
 */
export function safeHref(address) {
  if (!SAFE.test(address) || !URL.canParse(address)) return null;
  const url = new URL(address);
  return url.username || url.password ? null : url.href;
}

/**
 * The target in short: the host, or the mail address.
 *
 * @param {string} href
 */
export function placeOf(href) {
  const url = new URL(href);
  return url.protocol === "mailto:" ? url.pathname : url.host;
}
