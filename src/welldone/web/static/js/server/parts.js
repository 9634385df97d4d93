// Building blocks of the tables in this view.

import { h, svg } from "../dom.js";
import { NOTHING } from "../format.js";
import { visible } from "../text.js";

/** @import { Child } from "../dom.js" */

/**
 * @template Row
 * @typedef {{title: string, isNumber?: boolean, cell: (row: Row) => Child | Child[]}} Column
 */

/**
 * A table. With the class "cards" its rows become cards on narrow screens. Roles are explicit, since CSS `display`
 * removes the implicit ones.
 *
 * @template Row
 * @param {string} title
 * @param {Column<Row>[]} columns the first is the row header
 * @param {Row[]} rows
 * @param {(row: Row) => string} keyOf
 * @param {string} [className]
 */
export function table(title, columns, rows, keyOf, className = "cards") {
  const heads = columns.map(({ title: head, isNumber }) =>
    h("th", { role: "columnheader", scope: "col", class: isNumber ? "number" : "" }, head),
  );
  return h(
    "table",
    { class: className, role: "table", "aria-label": title },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
    h("tbody", { role: "rowgroup" }, rows.map((row) => drawRow(columns, row, keyOf(row)))),
  );
}

/**
 * @template Row
 * @param {Column<Row>[]} columns
 * @param {Row} row
 * @param {string} key
 */
function drawRow(columns, row, key) {
  const cells = columns.map(({ title, isNumber, cell }, n) => {
    const inside = [cell(row)].flat().filter((child) => child !== null && child !== undefined && child !== false);
    const isEmpty = inside.length === 0 || inside[0] === NOTHING;
    const props = { class: `${isNumber ? "number" : ""}${isEmpty ? " empty" : ""}`.trim(), dataset: { label: title } };
    if (n === 0) return h("th", { role: "rowheader", scope: "row", ...props }, inside);
    return h("td", { role: "cell", ...props }, isEmpty ? NOTHING : inside);
  });
  return h("tr", { role: "row", dataset: { key } }, cells);
}

/**
 * A share as a bar with a text.
 *
 * @param {number} part
 * @param {number} whole
 * @param {string} text
 * @param {boolean} [isTight] nearly used up
 */
export function bar(part, whole, text, isTight = part >= whole) {
  const share = whole > 0 ? Math.min(1, Math.max(0, part / whole)) : 0;
  return h(
    "span",
    { class: "share" },
    svg(
      "svg",
      { class: isTight ? "bar tight" : "bar", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": true },
      svg("rect", { class: "bar-ground", width: 100, height: 6, rx: 3 }),
      svg("rect", { class: "bar-part", width: (100 * share).toFixed(1), height: 6, rx: 3 }),
    ),
    h("span", {}, text),
  );
}

/**
 * Untrusted text, or a dash if empty.
 *
 * @param {string | null | undefined} text
 */
export function textOrDash(text) {
  return text ? visible(text) : NOTHING;
}
