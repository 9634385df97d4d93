// Parses link destinations, after a label or bare in the text.

import { MAX_DEPTH } from "./lines.js";

/**
 * The `(address "title")` after a label. Stops at the next opening bracket or space, so that the scan is bounded.
 *
 * @param {string} text
 * @param {number} at
 */
export function targetAt(text, at) {
  if (text[at] !== "(") return null;
  const from = skipSpace(text, at + 1);
  const address = text[from] === "<" ? angleAddress(text, from) : plainAddress(text, from);
  if (!address) return null;
  let end = skipSpace(text, address.end);
  let title = "";
  if (end > address.end && (text[end] === '"' || text[end] === "'")) {
    const close = text.indexOf(text[end], end + 1);
    if (close < 0) return null;
    title = text.slice(end + 1, close);
    end = skipSpace(text, close + 1);
  }
  return text[end] === ")" ? { address: address.value, title, end: end + 1 } : null;
}

/**
 * @param {string} text
 * @param {number} from
 */
function angleAddress(text, from) {
  let at = from + 1;
  while (at < text.length && text[at] !== ">" && text[at] !== "<" && text[at] !== "\n") at += 1;
  return text[at] === ">" ? { value: text.slice(from + 1, at), end: at + 1 } : null;
}

/**
 * Balanced brackets belong to the address.
 *
 * @param {string} text
 * @param {number} from
 */
function plainAddress(text, from) {
  let depth = 0;
  let at = from;
  for (; at < text.length && !/\s/.test(text[at]); at += 1) {
    if (text[at] === "(" && ++depth > MAX_DEPTH) return null;
    if (text[at] === ")" && --depth < 0) break;
  }
  return depth <= 0 ? { value: text.slice(from, at), end: at } : null;
}

/**
 * @param {string} text
 * @param {number} at
 */
function skipSpace(text, at) {
  let to = at;
  while (text[to] === " " || text[to] === "\n") to += 1;
  return to;
}

/**
 * An address in running text without trailing punctuation.
 *
 * @param {string} address
 */
export function withoutTail(address) {
  let open = 0;
  let close = 0;
  for (const sign of address) {
    if (sign === "(") open += 1;
    else if (sign === ")") close += 1;
  }
  let end = address.length;
  for (; end > 0; end -= 1) {
    const last = address[end - 1];
    if (last === ")" && close > open) close -= 1;
    else if (!/[.,:;!?'"*_~`\]]/.test(last)) break;
  }
  return address.slice(0, end);
}
