// What a repair changed in a chunk: the fields that differ between the upstream's JSON and ours.

import { isRecord } from "../record.js";

/** @typedef {{path: string, before: unknown, after: unknown}} Change A side that has no such field has undefined. */

/** More than these nobody reads one by one. */
const MOST_CHANGES = 40;
/** Far deeper than any chunk, and far from the end of the stack. */
const DEEPEST = 30;

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
  if (before === after || found.length >= MOST_CHANGES) return;
  const areAlike = isRecord(before) ? isRecord(after) : Array.isArray(before) && Array.isArray(after);
  if (!areAlike || depth > DEEPEST) {
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
 * @param {string} name such as "__proto__", which is a field like others
 */
function own(holder, name) {
  return holder && Object.hasOwn(holder, name) ? holder[name] : undefined;
}
