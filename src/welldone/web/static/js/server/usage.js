// The keys: what is left of their limits, and what they have spent.

import { h } from "../dom.js";
import { count } from "../format.js";
import { bar, said, table } from "./parts.js";

/** @import { Column } from "./parts.js" */

const TIGHT = 0.1; // of a limit: the next requests may be refused

/**
 * @param {ServerState} state
 * @returns {Node[]}
 */
export function drawUsage({ keys }) {
  if (keys.length === 0) return [h("p", { class: "soft" }, "Nobody has asked for anything yet.")];
  const words = "What is left of each minute's limits, and what was used since the server began.";
  return [h("p", { class: "soft small" }, words), table("Keys", COLUMNS, keys, ({ name }) => name)];
}

/** @type {Column<KeyState>[]} */
const COLUMNS = [
  { title: "Key", cell: ({ name }) => said(name) },
  { title: "Requests left", cell: ({ requests }) => drawLimit(requests) },
  { title: "Tokens left", cell: ({ tokens }) => drawLimit(tokens) },
  { title: "Requests", isNumber: true, cell: ({ spent }) => count(spent.requests) },
  { title: "Tokens", isNumber: true, cell: ({ spent }) => count(spent.tokens) },
];

/** @param {KeyState["requests"]} limit */
function drawLimit(limit) {
  if (limit === null) return "no limit";
  const left = Math.max(0, Math.floor(limit.remaining));
  return bar(left, limit.limit, `${count(left)} of ${count(limit.limit)}`, left <= limit.limit * TIGHT);
}
