// Classification of single Markdown lines.

/** @typedef {{indent: number, sign: string, length: number, info: string}} Fence */
/** @typedef {{sign: string, start: number | null, indent: number, content: number, isEmpty: boolean}} Marker */

export const MAX_DEPTH = 16; // deeper than people nest
export const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
export const QUOTE = /^ {0,3}>/;
const FENCE = /^( {0,3})(`{3,}|~{3,})([^]*)$/;
const MARKER = /^( *)([-*+]|(\d{1,9})([.)]))( +|\t|$)/;
const BEGINS = /^ {0,3}[-`~#*_>+\d]/;

/** @param {string} line */
export function isBlank(line) {
  return line.trim() === "";
}

/**
 * Indent of a line in columns; tab stops every four columns.
 *
 * @param {string} line
 */
export function indentOf(line) {
  let width = 0;
  for (let at = 0; line[at] === " " || line[at] === "\t"; at += 1) width += line[at] === "\t" ? 4 - (width % 4) : 1;
  return width;
}

/**
 * Remove columns of indent from a line.
 *
 * @param {string} line
 * @param {number} columns
 */
export function strip(line, columns) {
  let width = 0;
  let at = 0;
  for (; width < columns && (line[at] === " " || line[at] === "\t"); at += 1) {
    width += line[at] === "\t" ? 4 - (width % 4) : 1;
  }
  return " ".repeat(Math.max(0, width - columns)) + line.slice(at);
}

/** @param {string} line */
export function isRule(line) {
  const signs = line.trimStart();
  if (!/^[-*_]/.test(signs) || indentOf(line) >= 4) return false;
  let count = 0;
  for (const sign of signs) {
    if (sign === signs[0]) count += 1;
    else if (sign !== " " && sign !== "\t") return false;
  }
  return count >= 3;
}

/**
 * @param {string} line
 * @returns {Fence | null}
 */
export function fenceOf(line) {
  const found = FENCE.exec(line);
  if (!found) return null;
  const [, { length: indent }, { length, 0: sign }, info] = found;
  // Backticks after backticks: inline code, not a fence.
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
 * Remove the indent of the fence from a line of code.
 *
 * @param {string} line
 * @param {Fence} fence
 */
export function codeLine(line, fence) {
  return strip(line, fence.indent);
}

/**
 * @param {string} line
 * @returns {Marker | null}
 */
export function markerOf(line) {
  const found = MARKER.exec(line);
  if (!found) return null;
  const [whole, { length: indent }, sign, number, point, { length: space }] = found;
  const isEmpty = whole.length === line.length;
  // Five or more spaces: one space and an indented block.
  const content = isEmpty || space > 4 ? indent + sign.length + 1 : whole.length;
  return { sign: point ?? sign, start: number === undefined ? null : Number(number), indent, content, isEmpty };
}

/**
 * Whether a line ends the paragraph before it.
 *
 * @param {string} line
 * @param {number} depth
 */
export function interrupts(line, depth) {
  if (!BEGINS.test(line)) return false; // most lines
  if (fenceOf(line) || HEADING.test(line) || isRule(line)) return true;
  if (depth >= MAX_DEPTH) return false;
  if (QUOTE.test(line)) return true;
  const marker = markerOf(line);
  // A number at the start of a line is usually not a list.
  return marker !== null && !marker.isEmpty && (marker.start === null || marker.start === 1);
}
