// Renders the tree as elements.

import { h } from "../dom.js";
import { visible } from "../text.js";
import { CodeBlock } from "./code.js";
import { placeOf } from "./links.js";
import { renderFormula } from "./math.js";

/** @import { Inline } from "./inline.js" */
/** @import { Block } from "./parse.js" */

const TAGS = /** @type {const} */ ({ emphasis: "em", strong: "strong", strike: "del" });
const HEADINGS = /** @type {const} */ (["h3", "h4", "h5", "h6", "h6", "h6"]); // below the headings of the page
// A host name in the text of a link.
const HOST = /[\p{L}\p{N}-]\.[\p{L}]{2}/u;

/**
 * @param {Block} block
 * @returns {HTMLElement}
 */
export function renderBlock(block) {
  switch (block.type) {
    case "paragraph":
      return h("p", { dir: "auto" }, renderInlines(block.inlines));
    case "heading":
      return h(HEADINGS[block.level - 1], { dir: "auto" }, renderInlines(block.inlines));
    case "code":
      return renderCode(block);
    case "rule":
      return h("hr");
    case "quote":
      return h("blockquote", { dir: "auto" }, block.blocks.map(renderBlock));
    case "list":
      return renderList(block);
    case "table":
      return renderTable(block);
  }
}

/** @param {Extract<Block, {type: "code"}>} block */
function renderCode({ info, text }) {
  const code = new CodeBlock(info);
  code.append(text);
  return code.element;
}

/** @param {Extract<Block, {type: "list"}>} block */
function renderList({ start, isTight, items }) {
  const made = items.map(({ isDone, blocks }) => {
    const box = isDone !== null && makeBox(isDone);
    const inside = blocks.map((block) =>
      block.type === "paragraph" ? renderText(block.inlines, isTight) : renderBlock(block),
    );
    return h("li", { class: box ? "md-task" : "" }, box, inside);
  });
  if (start === null) return h("ul", { dir: "auto" }, made);
  return h("ol", { dir: "auto", start }, made);
}

/** @param {boolean} isDone */
function makeBox(isDone) {
  return h("input", { type: "checkbox", disabled: true, checked: isDone, "aria-label": "Task" });
}

/**
 * The text of an item, without `dir`: the list takes its direction, and with it the side of its markers, from the text.
 *
 * @param {Inline[]} inlines
 * @param {boolean} isTight
 */
function renderText(inlines, isTight) {
  return isTight ? h("span", { class: "md-tight" }, renderInlines(inlines)) : h("p", {}, renderInlines(inlines));
}

/** @param {Extract<Block, {type: "table"}>} block */
function renderTable({ aligns, head, rows }) {
  /**
   * @param {"th" | "td"} tag
   * @param {Inline[]} inlines
   * @param {number} column
   */
  const cell = (tag, inlines, column) => {
    const align = aligns[column];
    return h(tag, { dir: "auto", class: align ? `md-${align}` : "" }, renderInlines(inlines));
  };
  const top = h("tr", {}, head.map((inlines, column) => cell("th", inlines, column)));
  const body = rows.map((row) => h("tr", {}, row.map((inlines, column) => cell("td", inlines, column))));
  const table = h("table", {}, h("thead", {}, top), h("tbody", {}, body));
  return h("div", { class: "md-table", tabIndex: 0, role: "group", "aria-label": "Table" }, table);
}

/**
 * @param {Inline[]} inlines
 * @returns {(Node | string)[]}
 */
function renderInlines(inlines) {
  return inlines.map(renderInline);
}

/**
 * @param {Inline} inline
 * @returns {Node | string}
 */
function renderInline(inline) {
  switch (inline.type) {
    case "text":
      return visible(inline.text);
    case "code":
      return h("code", { dir: "ltr" }, visible(inline.text));
    case "math":
      return renderFormula(inline.text);
    case "break":
      return h("br");
    case "link":
      return renderLink(inline);
    default:
      return h(TAGS[inline.type], {}, renderInlines(inline.inlines));
  }
}

/** @param {Extract<Inline, {type: "link"}>} link */
function renderLink({ href, title, inlines }) {
  const place = placeOf(href);
  const hint = title ? `${place}: ${visible(title)}` : place;
  const rel = "noopener noreferrer nofollow";
  const anchor = h("a", { href, target: "_blank", rel, title: hint }, renderInlines(inlines));
  const text = anchor.textContent ?? "";
  // A text that looks like another address must not hide the target of the link.
  const isOther = HOST.test(text) && !text.toLowerCase().includes(place.toLowerCase());
  if (!text.trim()) anchor.append(place);
  else if (isOther) anchor.append(h("span", { class: "md-host" }, ` (${place})`));
  return anchor;
}
