// Badge: a word or a number on a coloured background.

import { h } from "./dom.js";

/** @typedef {"good" | "warn" | "bad" | "info" | ""} Tone */

/**
 * @param {string | number} text
 * @param {Tone} [tone]
 */
export function badge(text, tone = "") {
  return h("span", { class: `badge ${tone}`.trim() }, text);
}
