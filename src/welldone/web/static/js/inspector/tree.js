// JSON as a tree, collapsed below some depth. Collapsed nodes are built when they are opened.

import { h } from "../dom.js";
import { visible } from "../text.js";

/** Levels that start expanded: the name of a tool call in a chunk is on level seven. */
const OPEN_DEPTH = 7;
const MAX_ITEMS = 200;
const MAX_CHARACTERS = 5_000;

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
  const children = h("div", { class: "tree-children" });
  const fill = () => {
    if (children.childElementCount) return;
    children.append(...entries.slice(0, MAX_ITEMS).map(([inner, item]) => node(inner, item, depth + 1)));
    const left = entries.length - MAX_ITEMS;
    if (left > 0) children.append(h("div", { class: "soft" }, `… ${left} more`));
  };
  const isOpen = depth < OPEN_DEPTH;
  if (isOpen) fill();
  const size = h("span", { class: "soft" }, isList ? `[${entries.length}]` : `{${entries.length}}`);
  return h("details", { open: isOpen, on: { toggle: fill } }, h("summary", {}, label, size), children);
}

/** @param {unknown} value */
function leaf(value) {
  const text = JSON.stringify(value);
  const shown = text.length > MAX_CHARACTERS ? `${text.slice(0, MAX_CHARACTERS)}… (${text.length} characters)` : text;
  return h("span", { class: `tree-${value === null ? "null" : typeof value}` }, visible(shown));
}
