// JSON as a tree that is folded where it is deep. What is folded is only made when it is opened.

import { h } from "../dom.js";
import { visible } from "../text.js";

/** Levels that are open from the start: a chunk's tool call has its name on the seventh. */
const OPEN_DEPTH = 7;
const MOST_ITEMS = 200;
const MOST_LETTERS = 5_000;

/**
 * @param {unknown} value
 * @returns {HTMLElement}
 */
export function tree(value) {
  return h("div", { class: "tree" }, node(null, value, 0));
}

/**
 * @param {string | null} name
 * @param {unknown} value
 * @param {number} depth
 * @returns {HTMLElement}
 */
function node(name, value, depth) {
  const label = name === null ? null : h("span", { class: "tree-name" }, `${visible(name)}: `);
  if (typeof value !== "object" || value === null) return h("div", { class: "tree-leaf" }, label, leaf(value));
  const entries = Object.entries(value);
  const isList = Array.isArray(value);
  if (entries.length === 0) return h("div", { class: "tree-leaf" }, label, isList ? "[]" : "{}");
  const room = h("div", { class: "tree-room" });
  const fill = () => {
    if (room.childElementCount) return;
    room.append(...entries.slice(0, MOST_ITEMS).map(([inner, item]) => node(inner, item, depth + 1)));
    const left = entries.length - MOST_ITEMS;
    if (left > 0) room.append(h("div", { class: "soft" }, `… ${left} more`));
  };
  const isOpen = depth < OPEN_DEPTH;
  if (isOpen) fill();
  const size = h("span", { class: "soft" }, isList ? `[${entries.length}]` : `{${entries.length}}`);
  return h("details", { open: isOpen, on: { toggle: fill } }, h("summary", {}, label, size), room);
}

/** @param {unknown} value */
function leaf(value) {
  const text = JSON.stringify(value);
  const shown = text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS)}… (${text.length} characters)` : text;
  return h("span", { class: `tree-${value === null ? "null" : typeof value}` }, visible(shown));
}
