// Markdown as a tree of plain values: the blocks. CommonMark's usual parts and GitHub's tables, task lists and
// strikethrough. HTML is text, and pictures are links: nothing is ever loaded. Each line is looked at a bounded number
// of times for each level of nesting, and levels are bounded.

import { parseInline } from "./inline.js";

/** @typedef {import("./inline.js").Inline} Inline */
/** @typedef {{isDone: boolean | null, blocks: Block[]}} Item isDone is null where it is no task */
/** @typedef {"left" | "right" | "center" | null} Align */
/**
 * @typedef {{type: "paragraph", inlines: Inline[]}
 *   | {type: "heading", level: number, inlines: Inline[]}
 *   | {type: "code", info: string, text: string}
 *   | {type: "rule"}
 *   | {type: "quote", blocks: Block[]}
 *   | {type: "list", start: number | null, isTight: boolean, items: Item[]}
 *   | {type: "table", aligns: Align[], head: Inline[][], rows: Inline[][][]}} Block
 */
/** @typedef {{indent: number, sign: string, length: number, info: string}} Fence */
/** @typedef {{sign: string, start: number | null, indent: number, content: number, isEmpty: boolean}} Marker */
/** A block without its inside, and the lines it takes; `fence` where one is open. */
/** @typedef {{block: () => Block, from: number, to: number, fence?: Fence, isTable?: boolean}} Cut */

const DEEPEST = 16; // more than people nest
const MOST_COLUMNS = 64; // more than fit on a screen
const FENCE = /^( {0,3})(`{3,}|~{3,})([^]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const UNDERLINE = /^ {0,3}(=+|-+) *$/;
const QUOTE = /^ {0,3}>/;
const MARKER = /^( *)([-*+]|(\d{1,9})([.)]))( +|\t|$)/;
const BEGINS = /^ {0,3}[-`~#*_>+\d]/;
const TASK = /^\[([ xX])\] /;
const DELIMITER = /^ *:?-+:? *$/;

/**
 * @param {string} text
 * @returns {Block[]}
 */
export function parse(text) {
  return parseLines(text.split(/\r\n|\n|\r/), 0);
}

/**
 * @param {string[]} lines
 * @param {number} depth
 * @returns {Block[]}
 */
function parseLines(lines, depth) {
  return cutBlocks(lines, depth).map(({ block }) => block());
}

/**
 * Where blocks begin and end. The inside of each is read when its `block` is called.
 *
 * @param {string[]} lines
 * @param {number} [depth]
 * @returns {Cut[]}
 */
export function cutBlocks(lines, depth = 0) {
  /** @type {Cut[]} */
  const cuts = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const cut = blockAt(lines, at, depth);
    cuts.push(cut);
    at = cut.to;
  }
  return cuts;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {Cut}
 */
function blockAt(lines, at, depth) {
  const line = lines[at];
  if (indentOf(line) >= 4) return cutIndented(lines, at);
  const fence = fenceOf(line);
  if (fence) return cutFence(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const level = heading[1].length;
    const text = withoutHashes(line.slice(heading[0].length));
    return { from: at, to: at + 1, block: () => ({ type: "heading", level, inlines: parseInline(text) }) };
  }
  if (isRule(line)) return { from: at, to: at + 1, block: () => ({ type: "rule" }) };
  if (depth < DEEPEST && QUOTE.test(line)) return cutQuote(lines, at, depth);
  const marker = depth < DEEPEST ? markerOf(line) : null;
  if (marker) return cutList(lines, at, marker, depth);
  const aligns = tableAt(lines, at);
  if (aligns) return cutTable(lines, at, aligns);
  return cutParagraph(lines, at, depth);
}

/**
 * @param {string[]} lines
 * @param {number} from
 * @returns {Cut}
 */
function cutIndented(lines, from) {
  let to = from + 1;
  for (let at = to; at < lines.length; at += 1) {
    if (indentOf(lines[at]) >= 4 && !isBlank(lines[at])) to = at + 1;
    else if (!isBlank(lines[at])) break;
  }
  const text = () => lines.slice(from, to).map((line) => strip(line, 4)).join("\n");
  return { from, to, block: () => ({ type: "code", info: "", text: text() }) };
}

/**
 * @param {string} line
 * @returns {Fence | null}
 */
function fenceOf(line) {
  const found = FENCE.exec(line);
  if (!found) return null;
  const [, { length: indent }, { length, 0: sign }, info] = found;
  // Backticks behind backticks are code within a line.
  return sign === "`" && info.includes("`") ? null : { indent, sign, length, info: info.trim() };
}

/**
 * Whether a line closes a fence.
 *
 * @param {string} line
 * @param {Fence} fence
 */
export function isFenceEnd(line, fence) {
  const found = FENCE.exec(line);
  return Boolean(found && found[2][0] === fence.sign && found[2].length >= fence.length && isBlank(found[3]));
}

/**
 * A line of code without the indent of its fence.
 *
 * @param {string} line
 * @param {Fence} fence
 */
export function codeLine(line, fence) {
  return strip(line, fence.indent);
}

/**
 * @param {string[]} lines
 * @param {number} from
 * @param {Fence} fence
 * @returns {Cut}
 */
function cutFence(lines, from, fence) {
  let end = from + 1;
  while (end < lines.length && !isFenceEnd(lines[end], fence)) end += 1;
  const isOpen = end === lines.length;
  const text = () => lines.slice(from + 1, end).map((line) => codeLine(line, fence)).join("\n");
  return {
    from,
    to: isOpen ? end : end + 1,
    block: () => ({ type: "code", info: fence.info, text: text() }),
    ...(isOpen ? { fence } : {}),
  };
}

/**
 * @param {string[]} lines
 * @param {number} from
 * @param {number} depth
 * @returns {Cut}
 */
function cutQuote(lines, from, depth) {
  /** @type {string[]} */
  const inner = [];
  let at = from;
  for (; at < lines.length; at += 1) {
    const line = lines[at];
    if (QUOTE.test(line)) inner.push(withoutQuote(line));
    else if (continues(line, inner[inner.length - 1], depth)) inner.push(line);
    else break;
  }
  return { from, to: at, block: () => ({ type: "quote", blocks: parseLines(inner, depth + 1) }) };
}

/** @param {string} line */
function withoutQuote(line) {
  const at = line.indexOf(">") + 1;
  return line.slice(line[at] === " " ? at + 1 : at);
}

/**
 * Whether a line that lacks the signs of its quote or item goes on with the paragraph before it.
 *
 * @param {string} line
 * @param {string} before
 * @param {number} depth
 */
function continues(line, before, depth) {
  if (isBlank(line) || isBlank(before) || interrupts(line, depth)) return false;
  return !fenceOf(before) && !HEADING.test(before) && !isRule(before) && indentOf(before) < 4;
}

/**
 * @param {string} line
 * @returns {Marker | null}
 */
function markerOf(line) {
  const found = MARKER.exec(line);
  if (!found) return null;
  const [whole, { length: indent }, sign, number, point, { length: space }] = found;
  const isEmpty = whole.length === line.length;
  // Five spaces or more are one, and an indented block.
  const content = isEmpty || space > 4 ? indent + sign.length + 1 : whole.length;
  return { sign: point ?? sign, start: number === undefined ? null : Number(number), indent, content, isEmpty };
}

/**
 * @param {string[]} lines
 * @param {number} from
 * @param {Marker} first
 * @param {number} depth
 * @returns {Cut}
 */
function cutList(lines, from, first, depth) {
  /** @type {string[][]} */
  const items = [];
  let isTight = true;
  let to = from;
  /** @type {Marker | null} */
  let marker = first;
  for (let at = from; marker; ) {
    to = itemEnd(lines, at, marker, depth);
    items.push(itemLines(lines, at, to, marker));
    isTight &&= !hasGap(lines, at, to);
    at = skipBlank(lines, to);
    marker = siblingAt(lines, at, first);
    if (marker && at > to) isTight = false;
  }
  const { start } = first;
  const block = () =>
    /** @type {Block} */ ({ type: "list", start, isTight, items: items.map((item) => makeItem(item, depth)) });
  return { from, to, block };
}

/**
 * The marker of the next item of a list, if one stands here.
 *
 * @param {string[]} lines
 * @param {number} at
 * @param {Marker} first
 */
function siblingAt(lines, at, first) {
  if (at >= lines.length || indentOf(lines[at]) >= 4 || isRule(lines[at])) return null;
  const marker = markerOf(lines[at]);
  return marker?.sign === first.sign ? marker : null;
}

/**
 * The line behind an item: blank lines at its end are not part of it.
 *
 * @param {string[]} lines
 * @param {number} from
 * @param {Marker} marker
 * @param {number} depth
 */
function itemEnd(lines, from, marker, depth) {
  let end = from + 1;
  let before = lines[from].slice(marker.content);
  for (let at = end; at < lines.length; at += 1) {
    const line = lines[at];
    if (isBlank(line)) {
      // An item that begins with a blank line has nothing behind it.
      if (marker.isEmpty && at === from + 1) break;
    } else if (indentOf(line) >= marker.content || (end === at && !markerOf(line) && continues(line, before, depth))) {
      end = at + 1;
    } else break;
    before = line;
  }
  return end;
}

/**
 * @param {string[]} lines
 * @param {number} from
 * @param {number} to
 * @param {Marker} marker
 */
function itemLines(lines, from, to, marker) {
  const rest = lines.slice(from + 1, to).map((line) => strip(line, marker.content));
  return [lines[from].slice(marker.content), ...rest];
}

/**
 * Whether a blank line lies between two lines of the item that are its own.
 *
 * @param {string[]} lines
 * @param {number} from
 * @param {number} to
 */
function hasGap(lines, from, to) {
  let isInFence = false;
  for (let at = from; at < to; at += 1) {
    if (/^\s*(?:[-*+] +)?(?:```|~~~)/.test(lines[at])) isInFence = !isInFence;
    else if (!isInFence && isBlank(lines[at])) return true;
  }
  return false;
}

/**
 * @param {string[]} lines
 * @param {number} depth
 * @returns {Item}
 */
function makeItem(lines, depth) {
  const task = TASK.exec(lines[0]);
  if (!task) return { isDone: null, blocks: parseLines(lines, depth + 1) };
  const rest = [lines[0].slice(task[0].length), ...lines.slice(1)];
  return { isDone: task[1] !== " ", blocks: parseLines(rest, depth + 1) };
}

/**
 * The alignments of the columns of a table that begins here, if one does.
 *
 * @param {string[]} lines
 * @param {number} at
 * @returns {Align[] | null}
 */
function tableAt(lines, at) {
  const next = lines[at + 1];
  if (next === undefined || !next.includes("-") || !(next.includes("|") || next.includes(":"))) return null;
  if (!lines[at].includes("|")) return null;
  const cells = cellsOf(next);
  if (cells.length > MOST_COLUMNS || !cells.every((cell) => DELIMITER.test(cell))) return null;
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
function cutTable(lines, from, aligns) {
  let to = from + 2;
  while (to < lines.length && !isBlank(lines[to]) && !interrupts(lines[to], 0)) to += 1;
  /** @param {string} line */
  const row = (line) => {
    const cells = cellsOf(line);
    // What is beyond the last column stays in it: nothing is lost.
    const kept = cells.slice(0, aligns.length - 1).concat(cells.slice(aligns.length - 1).join(" | ") || []);
    return kept.map((cell) => parseInline(cell.trim()));
  };
  const block = () =>
    /** @type {Block} */ ({ type: "table", aligns, head: row(lines[from]), rows: lines.slice(from + 2, to).map(row) });
  return { from, to, block, isTable: true };
}

/**
 * The cells of a row; `\|` is a sign within a cell.
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

/**
 * @param {string[]} lines
 * @param {number} from
 * @param {number} depth
 * @returns {Cut}
 */
function cutParagraph(lines, from, depth) {
  let to = from + 1;
  for (; to < lines.length; to += 1) {
    const line = lines[to];
    const underline = UNDERLINE.exec(line);
    if (underline) {
      const level = underline[1][0] === "=" ? 1 : 2;
      const text = paragraphText(lines, from, to);
      return { from, to: to + 1, block: () => ({ type: "heading", level, inlines: parseInline(text) }) };
    }
    if (isBlank(line) || interrupts(line, depth) || tableAt(lines, to)) break;
  }
  const text = () => paragraphText(lines, from, to);
  return { from, to, block: () => ({ type: "paragraph", inlines: parseInline(text()) }) };
}

/**
 * @param {string[]} lines
 * @param {number} from
 * @param {number} to
 */
function paragraphText(lines, from, to) {
  return lines
    .slice(from, to)
    .map((line) => line.trimStart())
    .join("\n")
    .trimEnd();
}

/**
 * Whether a line ends the paragraph before it.
 *
 * @param {string} line
 * @param {number} depth
 */
function interrupts(line, depth) {
  if (!BEGINS.test(line)) return false; // as most lines do
  if (fenceOf(line) || HEADING.test(line) || isRule(line)) return true;
  if (depth >= DEEPEST) return false;
  if (QUOTE.test(line)) return true;
  const marker = markerOf(line);
  // A number at the start of a line is mostly just that.
  return marker !== null && !marker.isEmpty && (marker.start === null || marker.start === 1);
}

/** @param {string} line */
function isRule(line) {
  const signs = line.trimStart();
  if (!/^[-*_]/.test(signs) || indentOf(line) >= 4) return false;
  let count = 0;
  for (const sign of signs) {
    if (sign === signs[0]) count += 1;
    else if (sign !== " " && sign !== "\t") return false;
  }
  return count >= 3;
}

/** @param {string} line */
function isBlank(line) {
  return line.trim() === "";
}

/**
 * How many columns a line is indented; a tab goes to the next fourth.
 *
 * @param {string} line
 */
function indentOf(line) {
  let width = 0;
  for (let at = 0; line[at] === " " || line[at] === "\t"; at += 1) width += line[at] === "\t" ? 4 - (width % 4) : 1;
  return width;
}

/**
 * A line without this many columns of its indent.
 *
 * @param {string} line
 * @param {number} columns
 */
function strip(line, columns) {
  let width = 0;
  let at = 0;
  for (; width < columns && (line[at] === " " || line[at] === "\t"); at += 1) {
    width += line[at] === "\t" ? 4 - (width % 4) : 1;
  }
  return " ".repeat(Math.max(0, width - columns)) + line.slice(at);
}

/**
 * @param {string[]} lines
 * @param {number} at
 */
function skipBlank(lines, at) {
  let to = at;
  while (to < lines.length && isBlank(lines[to])) to += 1;
  return to;
}

/**
 * A heading without the signs that close it.
 *
 * @param {string} text
 */
function withoutHashes(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (trimmed[end - 1] === "#") end -= 1;
  if (end === trimmed.length) return trimmed;
  return end === 0 || trimmed[end - 1] === " " ? trimmed.slice(0, end).trimEnd() : trimmed;
}
