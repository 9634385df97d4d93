// Tables of GitHub Flavored Markdown.

import { parseInline } from "./inline.js";
import { interrupts, isBlank } from "./lines.js";

/** @import { Align, Block, Cut } from "./parse.js" */

const MAX_COLUMNS = 64; // more than fit a screen
const DELIMITER = /^ *:?-+:? *$/;

/**
 * Column alignments of a table that starts here, if any.
 *
 * @param {string[]} lines
 * @param {number} at
 * @returns {Align[] | null}
 */
export function tableAt(lines, at) {
  const next = lines[at + 1];
  if (next === undefined || !next.includes("-") || !(next.includes("|") || next.includes(":"))) return null;
  if (!lines[at].includes("|")) return null;
  const cells = cellsOf(next);
  if (cells.length > MAX_COLUMNS || !cells.every((cell) => DELIMITER.test(cell))) return null;
  return cellsOf(lines[at]).length === cells.length ? cells.map(alignOf) : null;
}

/**
 * @param {string} cell
 * @returns {Align}
 */
function alignOf(cell) {
  const sign = cell.trim();
  if (sign.endsWith(":")) return sign.startsWith(":") ? "center" : "right";
  return sign.startsWith(":") ? "left" : null;
}

/**
 * @param {string[]} lines
 * @param {number} from
 * @param {Align[]} aligns
 * @returns {Cut}
 */
export function cutTable(lines, from, aligns) {
  let to = from + 2;
  while (to < lines.length && !isBlank(lines[to]) && !interrupts(lines[to], 0)) to += 1;
  /** @param {string} line */
  const row = (line) => {
    const cells = cellsOf(line);
    // Extra cells are kept in the last column.
    const kept = cells.slice(0, aligns.length - 1).concat(cells.slice(aligns.length - 1).join(" | ") || []);
    return kept.map((cell) => parseInline(cell.trim()));
  };
  const block = () =>
    /** @type {Block} */ ({ type: "table", aligns, head: row(lines[from]), rows: lines.slice(from + 2, to).map(row) });
  return { from, to, block, isTable: true };
}

/**
 * The cells of a row; `\|` is a character of a cell.
 *
 * @param {string} line
 */
function cellsOf(line) {
  const row = line.trim();
  const cells = [];
  let cell = "";
  let from = row.startsWith("|") ? 1 : 0;
  for (let at = from; at < row.length; at += 1) {
    if (row[at] === "\\" && row[at + 1] === "|") {
      cell += row.slice(from, at);
      from = at + 1;
      at += 1;
    } else if (row[at] === "|") {
      cells.push(cell + row.slice(from, at));
      cell = "";
      from = at + 1;
    }
  }
  if (from < row.length || cell || cells.length === 0) cells.push(cell + row.slice(from));
  return cells;
}
