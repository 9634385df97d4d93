// Fields of a chunk that a repair changed.

import { isRecord } from "../record.js";

/** @typedef {{path: string, before: unknown, after: unknown}} Change undefined: the field is missing on that side */

/** More would not be read. */
const MAX_CHANGES = 40;
/** Deeper than any real chunk, and far below the stack limit. */
const MAX_DEPTH = 30;

/**
 * @param {unknown} before
 * @param {unknown} after
 * @returns {Change[]}
 */
export function changes(before, after) {
  /** @type {Change[]} */
  const found = [];
  compare("", before, after, found, 0);
  return found;
}

/**
 * @param {string} path
 * @param {unknown} before
 * @param {unknown} after
 * @param {Change[]} found
 * @param {number} depth
 */
function compare(path, before, after, found, depth) {
  if (before === after || found.length >= MAX_CHANGES) return;
  const areAlike = isRecord(before) ? isRecord(after) : Array.isArray(before) && Array.isArray(after);
  if (!areAlike || depth > MAX_DEPTH) {
    found.push({ path: path || "(all)", before, after });
    return;
  }
  const [one, other] = /** @type {Record<string, unknown>[]} */ ([before, after]);
  for (const name of new Set([...Object.keys(one ?? {}), ...Object.keys(other ?? {})])) {
    const inner = Array.isArray(before) ? `${path}[${name}]` : path ? `${path}.${name}` : name;
    compare(inner, own(one, name), own(other, name), found, depth + 1);
  }
}

/**
 * @param {Record<string, unknown> | undefined} holder
 * @param {string} name may be "__proto__", which is an ordinary field here
 */
function own(holder, name) {
  return holder && Object.hasOwn(holder, name) ? holder[name] : undefined;
}
