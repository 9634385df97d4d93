// Which addresses a text may link to.

const SAFE = /^(?:https?:\/\/|mailto:)[^\s]/i;

/**
 * The address in the browser's own form; null where it is none that a person can safely follow. Names and passwords in
 * it only hide where it leads.
 *
 * @param {string} address
 */
export function safeHref(address) {
  if (!SAFE.test(address) || !URL.canParse(address)) return null;
  const url = new URL(address);
  return url.username || url.password ? null : url.href;
}

/**
 * Where it leads, in a few words: the host, or who gets the mail.
 *
 * @param {string} href
 */
export function placeOf(href) {
  const url = new URL(href);
  return url.protocol === "mailto:" ? url.pathname : url.host;
}
