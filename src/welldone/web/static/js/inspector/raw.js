// Exact bytes as text, with marked line ends and visible control characters, or as a hex dump.

import { h } from "../dom.js";
import { count } from "../format.js";
import { visible } from "../text.js";

/** Display limits: rendering a frame of megabytes would block the page for seconds. Copying has no limit. */
const MAX_CHARACTERS = 20_000;
const MAX_LINES = 400;
const MAX_HEX_BYTES = 4_096;
const HEX_WIDTH = 16;

/**
 * @param {string} text
 * @returns {HTMLElement}
 */
export function rawText(text) {
  const lines = text.slice(0, MAX_CHARACTERS).match(/[^\r\n]*(?:\r\n|\r|\n|$)/g) ?? [];
  const shown = lines.slice(0, MAX_LINES);
  const pre = h("pre", { class: "raw", tabIndex: 0 }, shown.flatMap(rawLine));
  const left = text.length - shown.join("").length;
  if (left > 0) pre.append(h("span", { class: "soft" }, `\n… ${count(left)} more characters; use Copy to get all`));
  return pre;
}

/** @param {string} line */
function rawLine(line) {
  const end = /[\r\n]*$/.exec(line)?.[0] ?? "";
  const mark = end.replace("\r", "\\r").replace("\n", "\\n");
  const text = visible(line.slice(0, line.length - end.length));
  return mark ? [text, h("span", { class: "eol" }, mark), "\n"] : [text];
}

/**
 * @param {Uint8Array} bytes
 * @returns {HTMLElement}
 */
export function rawHex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, MAX_HEX_BYTES); at += HEX_WIDTH) lines.push(hexLine(bytes, at));
  if (bytes.length > MAX_HEX_BYTES) lines.push(`… ${count(bytes.length - MAX_HEX_BYTES)} more bytes`);
  return h("pre", { class: "raw hex", tabIndex: 0 }, lines.join("\n"));
}

/**
 * @param {Uint8Array} bytes
 * @param {number} at
 */
function hexLine(bytes, at) {
  const row = [...bytes.slice(at, at + HEX_WIDTH)];
  const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  const characters = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·")).join("");
  return `${at.toString(16).padStart(4, "0")}  ${hex.padEnd(HEX_WIDTH * 3 - 1)}  ${characters}`;
}
