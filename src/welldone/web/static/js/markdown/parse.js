// Block parser: Markdown to a tree of plain values. The common parts of CommonMark, and GitHub's tables, task lists and
// strikethrough. HTML is text and images are links: nothing is ever loaded. Each line is scanned a bounded number of
// times per level of nesting, and the depth is bounded.

import { parseInline } from "./inline.js";
import {
  codeLine,
  MAX_DEPTH,
  fenceOf,
  HEADING,
  indentOf,
  interrupts,
  isBlank,
  isFenceEnd,
  isRule,
  markerOf,
  QUOTE,
  strip,
} from "./lines.js";
import { cutTable, tableAt } from "./table.js";
import { MAX_FORMULA } from "./tex.js";

/** @import { Inline } from "./inline.js" */
/** @import { Fence, Marker } from "./lines.js" */

/** @typedef {{isDone: boolean | null, blocks: Block[]}} Item isDone: null if it is not a task */
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
/** A block whose content is not parsed yet, with its lines; `fence` if one is open. */
/** @typedef {{block: () => Block, from: number, to: number, fence?: Fence, isTable?: boolean}} Cut */

const UNDERLINE = /^ {0,3}(=+|-+) *$/;
// Not `\[1] text`, which is an escaped bracket.
const FORMULA = /^\s*(\$\$|\\\[(?![^\]]*\]))/;
const TASK = /^\[([ xX])\] /;

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
 * Split into blocks. The content of each is parsed when its `block` is called.
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
  if (depth < MAX_DEPTH && QUOTE.test(line)) return cutQuote(lines, at, depth);
  const marker = depth < MAX_DEPTH ? markerOf(line) : null;
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
 * Whether a line without the markers of its quote or item continues the paragraph (lazy continuation).
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
 * The marker of the next list item, if any.
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
 * The line after an item, without trailing blank lines.
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
      // An item that begins with a blank line ends there.
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
 * Whether a blank line is between two lines of the item itself (a loose list).
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
 * @param {string[]} lines
 * @param {number} from
 * @param {number} depth
 * @returns {Cut}
 */
function cutParagraph(lines, from, depth) {
  let to = from + 1;
  let close = formulaOf(lines[from]);
  let start = from; // the line that opens a formula
  let size = 0;
  for (; to < lines.length; to += 1) {
    const line = lines[to];
    if (isBlank(line) || fenceOf(line)) break;
    size += line.length;
    // A line of a formula, such as `+ b` or `=`, is not a list or an underline.
    if (close && size <= MAX_FORMULA) {
      if (line.includes(close)) close = "";
      continue;
    }
    const underline = UNDERLINE.exec(line);
    if (underline) {
      const level = underline[1][0] === "=" ? 1 : 2;
      const text = paragraphText(lines, from, to);
      return { from, to: to + 1, block: () => ({ type: "heading", level, inlines: parseInline(text) }) };
    }
    if (interrupts(line, depth) || tableAt(lines, to)) break;
    [close, start, size] = [formulaOf(line), to, 0];
  }
  const end = close ? start : to;
  /** @type {() => Inline[]} */
  const inlines = () => parseInline(paragraphText(lines, from, end));
  // A formula without its end, as in a stream: the source.
  const rest = () => (close ? [/** @type {Inline} */ ({ type: "math", text: paragraphText(lines, end, to) })] : []);
  return { from, to, block: () => ({ type: "paragraph", inlines: [...inlines(), ...rest()] }) };
}

/**
 * What closes the formula that a line opens; empty if there is none, or if the line closes it.
 *
 * @param {string} line
 */
function formulaOf(line) {
  const open = FORMULA.exec(line);
  if (!open || line.includes("`")) return "";
  const close = open[1] === "$$" ? "$$" : "\\]";
  return line.includes(close, open[0].length) ? "" : close;
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
 * @param {string[]} lines
 * @param {number} at
 */
function skipBlank(lines, at) {
  let to = at;
  while (to < lines.length && isBlank(lines[to])) to += 1;
  return to;
}

/**
 * A heading without closing #s.
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
