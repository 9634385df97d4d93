// Table of keys: remaining limits and usage.

import { h } from "../dom.js";
import { count } from "../format.js";
import { bar, textOrDash, table } from "./parts.js";

/** @import { Column } from "./parts.js" */

const TIGHT = 0.1; // of a limit: the next requests may be rejected

/**
 * @param {ServerState} state
 * @returns {Node[]}
 */
export function drawUsage({ keys }) {
  if (keys.length === 0) return [h("p", { class: "soft" }, "No requests yet.")];
  const words = "What is left of the limits per minute, and the usage since the server started.";
  return [h("p", { class: "soft small" }, words), table("Keys", COLUMNS, keys, ({ name }) => name)];
}

/** @type {Column<KeyState>[]} */
const COLUMNS = [
  { title: "Key", cell: ({ name }) => textOrDash(name) },
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
