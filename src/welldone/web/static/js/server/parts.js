// What the tables of this view are made of.

import { h, svg } from "../dom.js";
import { NOTHING } from "../format.js";
import { visible } from "../text.js";

/** @import { Child } from "../dom.js" */

/**
 * @template Row
 * @typedef {{title: string, isNumber?: boolean, cell: (row: Row) => Child | Child[]}} Column
 */

/**
 * A table; with the looks "cards" its rows become cards where there is little room. Its roles are written out, which
 * looks would take away.
 *
 * @template Row
 * @param {string} title
 * @param {Column<Row>[]} columns the first names the row
 * @param {Row[]} rows
 * @param {(row: Row) => string} keyOf
 * @param {string} [looks]
 */
export function table(title, columns, rows, keyOf, looks = "cards") {
  const heads = columns.map(({ title: head, isNumber }) =>
    h("th", { role: "columnheader", scope: "col", class: isNumber ? "number" : "" }, head),
  );
  return h(
    "table",
    { class: looks, role: "table", "aria-label": title },
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
    const looks = { class: `${isNumber ? "number" : ""}${isEmpty ? " empty" : ""}`.trim(), dataset: { label: title } };
    if (n === 0) return h("th", { role: "rowheader", scope: "row", ...looks }, inside);
    return h("td", { role: "cell", ...looks }, isEmpty ? NOTHING : inside);
  });
  return h("tr", { role: "row", dataset: { key } }, cells);
}

/**
 * So much of a whole, as a bar beside the words that say the same.
 *
 * @param {number} part
 * @param {number} whole
 * @param {string} text
 * @param {boolean} [isTight] little is left
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
 * A name or a message that others have written.
 *
 * @param {string | null | undefined} text
 */
export function said(text) {
  return text ? visible(text) : NOTHING;
}
